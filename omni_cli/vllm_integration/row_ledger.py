"""Track which hidden-state rows of a request have been sent, so that every position is sent exactly once.

vLLM does not compute each position exactly once and in order: a prefix may come from the KV cache, a preempted request
is recomputed, a long prompt is split over steps, and rejected draft tokens are rolled back. The ledger determines which
rows of a computed span have not been sent yet, and keeps the rows of cached blocks for prefix hits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch


@dataclass(eq=False, slots=True)
class RequestRows:
    """The rows of one request: `ready` are those that nobody has taken, up to position `next_position`.

    `streams`: rows were taken, so that those of further steps will be wanted step by step. `problem` is the reason why
    rows are missing.
    """

    next_position: int = 0
    ready: list[torch.Tensor] = field(default_factory=list)
    streams: bool = False
    problem: str | None = None

    def take(self) -> torch.Tensor | None:
        """Remove and return the ready rows (num_rows, hidden_size), None if there are none. Raises `RuntimeError`."""
        if self.problem is not None:
            raise RuntimeError(self.problem)
        ready, self.ready, self.streams = self.ready, [], True
        return torch.cat(ready) if ready else None


class ComputedSpan(NamedTuple):
    """Positions [start, start + length) of `request_id`, computed as rows [row, row + length) of the step's batch.

    `num_draft_tokens` of the positions were drafted, and the last of them may be rejected. `owner` is set if the
    request wants its rows, `block_ids` are its KV-cache blocks, a list to which vLLM only appends.
    """

    request_id: str
    start: int
    length: int
    row: int
    num_draft_tokens: int = 0
    owner: RequestRows | None = None
    block_ids: Sequence[int] = ()

    @property
    def end(self) -> int:
        return self.start + self.length

    def accepted(self, num_sampled_tokens: int) -> ComputedSpan:
        """Return the span without rejected draft tokens; a step samples one more token than it accepts."""
        rejected = max(0, self.num_draft_tokens - max(0, num_sampled_tokens - 1))
        return self._replace(length=self.length - rejected, num_draft_tokens=0)


class RowLedger:
    """Per-request accounting of rows (num_tokens, hidden_size) on the host; steps are settled in order.

    An ended request is forgotten at once. What it is still owed from steps in progress ends with its `RequestRows`.
    """

    def __init__(self) -> None:
        self.owners: dict[str, RequestRows] = {}
        self._slot_rows: torch.Tensor | None = None
        self._block_size = 0

    def begin(self, request_id: str) -> None:
        """Start accounting for a request that wants its rows."""
        self.owners.setdefault(request_id, RequestRows())

    def forget(self, request_id: str) -> None:
        self.owners.pop(request_id, None)

    def keep_cached_rows(self, num_blocks: int, block_size: int, hidden_size: int, dtype: torch.dtype) -> None:
        """Allocate one row per KV-cache slot on the host; the system commits memory only as rows are written."""
        self._slot_rows = torch.empty((num_blocks * block_size, hidden_size), dtype=dtype)
        self._block_size = block_size

    def settle(self, spans: Sequence[ComputedSpan], rows: torch.Tensor) -> None:
        """Make the rows that each span's owner is owed `ready`, in order of position; every span has an owner.

        `rows` (sum of the spans' lengths, hidden_size) on the host are those of one or several steps, span by span.
        """
        if self._slot_rows is not None:
            # Even for an ended request: its blocks stay in the prefix cache, where another request may find them.
            self._slot_rows[self._slots_of(spans)] = rows
        parts = rows.split([span.length for span in spans])
        for span, part in zip(spans, parts, strict=True):
            self._add(span, part)

    def _add(self, span: ComputedSpan, rows: torch.Tensor) -> None:
        owner = span.owner
        assert owner is not None
        owed_from, end = owner.next_position, span.start + span.length
        if owed_from >= end:
            return
        if owed_from < span.start and self._slot_rows is None:
            owner.problem = (
                f"request {span.request_id}: positions {owed_from} to {span.start - 1} were never computed here, "
                "and no rows are kept for cached blocks"
            )
        elif owed_from < span.start:
            assert self._slot_rows is not None
            owner.ready.append(self._slot_rows[self._slots(span, owed_from, span.start)])
        owner.next_position = end
        owner.ready.append(rows[max(0, owed_from - span.start) :])

    def _slots_of(self, spans: Sequence[ComputedSpan]) -> torch.Tensor:
        size = self._block_size
        if all(span.length == 1 for span in spans):
            # Decoding steps: one small operation for all of them.
            return torch.tensor([span.block_ids[span.start // size] * size + span.start % size for span in spans])
        return torch.cat([self._slots(span, span.start, span.end) for span in spans])

    def _slots(self, span: ComputedSpan, start: int, end: int) -> torch.Tensor:
        first = start // self._block_size
        blocks = torch.tensor(span.block_ids[first : -(-end // self._block_size)])
        positions = torch.arange(start, end)
        return blocks[positions // self._block_size - first] * self._block_size + positions % self._block_size
