"""Rows staged in blocks, when steps begin before the ones before them have returned, as on a GPU."""

from __future__ import annotations

from collections import deque

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_cli.execution.copies import SyncCopy
from omni_cli.vllm_integration.row_ledger import ComputedSpan, RowLedger
from omni_cli.vllm_integration.row_staging import RowStaging, StepRows

BLOCK_SIZE = 4


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_steps_that_return_late_lose_no_rows(data):
    """The row of position p of request r is [r, p]; rejected drafts' rows are [r, -1]."""
    ledger = RowLedger()
    staging = RowStaging(ledger, SyncCopy)
    num_requests = data.draw(st.integers(1, 3), label="requests")
    blocks = [list(range(16 * index, 16 * index + 16)) for index in range(num_requests)]
    if data.draw(st.booleans(), label="keeps cached rows"):
        ledger.keep_cached_rows(16 * num_requests, BLOCK_SIZE, 2, torch.float32)
    for index in range(num_requests):
        ledger.begin(str(index))
    computed = [0] * num_requests
    under_way: deque[tuple[StepRows, list[ComputedSpan]]] = deque()
    taken: list[list[torch.Tensor]] = [[] for _ in range(num_requests)]

    def return_one() -> None:
        step, accepted = under_way.popleft()
        step.accepted = accepted
        if data.draw(st.booleans(), label="take"):
            staging.settle(step)
            for index in range(num_requests):
                rows = ledger.owners[str(index)].take()
                taken[index] += [] if rows is None else [rows]

    for _ in range(data.draw(st.integers(1, 12), label="steps")):
        spans, accepted, parts = [], [], []
        for index in range(num_requests):
            length = data.draw(st.integers(1, 4), label="length")
            num_drafts = length - 1 if computed[index] and data.draw(st.booleans(), label="drafts") else 0
            num_kept = length - data.draw(st.integers(0, num_drafts), label="rejected")
            owner = ledger.owners[str(index)]
            spans.append(ComputedSpan(str(index), computed[index], length, 0, num_drafts, owner, blocks[index]))
            accepted.append(spans[-1]._replace(length=num_kept, num_draft_tokens=0))
            positions = [*range(computed[index], computed[index] + num_kept), *[-1] * (length - num_kept)]
            parts.append(torch.tensor([[index, position] for position in positions], dtype=torch.float32))
            computed[index] += num_kept
        under_way.append((staging.keep(parts, spans), accepted))
        while under_way and (len(under_way) > 2 or data.draw(st.booleans(), label="returns")):
            return_one()
    last = under_way[-1][0] if under_way else None
    while under_way:
        return_one()
    if last is not None:
        staging.settle(last)
    for index in range(num_requests):
        rows = ledger.owners[str(index)].take()
        parts = taken[index] + ([] if rows is None else [rows])
        made = torch.cat(parts) if parts else torch.empty(0, 2)
        expected = torch.tensor([[index, position] for position in range(len(made))], dtype=torch.float32)
        assert torch.equal(made, expected.reshape(-1, 2))
        if last is not None:
            assert len(made) == computed[index]
