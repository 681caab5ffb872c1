"""Rows staged in blocks, when steps begin before the ones before them have returned, as on a GPU."""

from __future__ import annotations

from collections import deque

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omni_cli.execution.copies import SyncCopy
from omni_cli.vllm_integration import row_staging
from omni_cli.vllm_integration.row_ledger import ComputedSpan, RowLedger
from omni_cli.vllm_integration.row_staging import OwedRows, RowStaging, StepRows

BLOCK_SIZE = 4


class Requests:
    """Requests whose steps return late; the row of position p of request r is [r, p], of a rejected draft [r, -1]."""

    def __init__(self, count: int, *, keeps_cached_rows: bool) -> None:
        self.ledger = RowLedger()
        self.staging = RowStaging(self.ledger, SyncCopy)
        if keeps_cached_rows:
            self.ledger.keep_cached_rows(16 * count, BLOCK_SIZE, 2, torch.float32)
        for index in range(count):
            self.ledger.begin(str(index))
        self.owners = list(self.ledger.owners.values())
        self.computed = [0] * count
        self.taken = [torch.empty(0, 2) for _ in range(count)]
        self.under_way: deque[tuple[StepRows, list[ComputedSpan], list[int]]] = deque()
        self.returned: deque[tuple[dict[str, OwedRows], list[int]]] = deque()
        self.was_single = False

    def begin_step(self, lengths: list[tuple[int, int, int]]) -> None:
        """Compute positions, drafted positions and rejected ones of each request."""
        is_single = all(length == 1 for length, _, _ in lengths)
        spans, accepted, rows, parts = [], [], [], []
        for index, (length, num_drafts, num_rejected) in enumerate(lengths):
            start = self.computed[index]
            blocks = range(16 * index, 16 * index + 16)
            spans.append(ComputedSpan(str(index), start, length, 0, num_drafts, self.owners[index], blocks))
            self.computed[index] += length - num_rejected
            accepted.append(spans[-1]._replace(length=length - num_rejected, num_draft_tokens=0))
            positions = [*range(start, self.computed[index]), *[-1] * num_rejected]
            parts.append((len(rows), len(rows) + length))
            rows += [[index, position] for position in positions]
        step = self.staging.keep(torch.tensor(rows).float(), parts, None if is_single and self.was_single else spans)
        self.under_way.append((step, accepted, list(self.computed)))
        self.was_single = is_single

    def return_step(self) -> None:
        step, accepted, ends = self.under_way.popleft()
        has_drafts = any(span.num_draft_tokens for span in step.spans)
        self.returned.append((self.staging.returned(step, accepted if has_drafts else None), ends))

    def process_step(self, *, take: bool) -> None:
        """The rows that are taken end with this step, even if a later one has returned."""
        owed, ends = self.returned.popleft()
        for index in range(len(self.owners)) if take else ():
            rows = owed[str(index)].take()
            self.taken[index] = self.taken[index] if rows is None else torch.cat([self.taken[index], rows])
            assert len(self.taken[index]) == ends[index]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_steps_that_return_late_lose_no_rows(monkeypatch, data):
    count = data.draw(st.integers(1, 3), label="requests")
    monkeypatch.setattr(row_staging, "_BLOCK_BYTES", 8 * data.draw(st.sampled_from([1, 7, 30, 1000]), label="rows"))
    requests = Requests(count, keeps_cached_rows=data.draw(st.booleans(), label="keeps cached rows"))
    for number in range(data.draw(st.integers(1, 20), label="steps")):
        lengths = []
        is_single = data.draw(st.booleans(), label="one position each")
        for _ in range(count):
            # Steps of one position each are common, and kept together.
            length = 1 if is_single else data.draw(st.integers(1, 4), label="length")
            num_drafts = length - 1 if number and data.draw(st.booleans(), label="drafts") else 0
            lengths.append((length, num_drafts, data.draw(st.integers(0, num_drafts), label="rejected")))
        requests.begin_step(lengths)
        # vLLM starts a step before it has processed the one before it, and no further one.
        while len(requests.under_way) + len(requests.returned) > 1 or data.draw(st.booleans(), label="more"):
            while requests.under_way and (not requests.returned or data.draw(st.booleans(), label="returns")):
                requests.return_step()
            if requests.returned:
                requests.process_step(take=data.draw(st.booleans(), label="take"))
    requests.begin_step([(1, 0, 0)] * count)
    while requests.under_way:
        requests.return_step()
    while requests.returned:
        requests.process_step(take=len(requests.returned) == 1)
    for index, (rows, end) in enumerate(zip(requests.taken, requests.computed, strict=True)):
        assert rows.tolist() == [[index, position] for position in range(end)]
