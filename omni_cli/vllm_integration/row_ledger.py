"""Track which hidden-state rows of a request have been sent, so that every position is sent exactly once.

vLLM does not compute each position exactly once and in order: a prefix may come from the KV cache, a preempted request
is recomputed, a long prompt is split over steps, and rejected draft tokens are rolled back. The ledger determines which
rows of a computed span have not been sent yet, and keeps the rows of cached blocks for prefix hits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
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
        num_slots = num_blocks * block_size
        # NumPy asks for large pages: committing small ones takes longer than writing the rows.
        memory = torch.from_numpy(np.empty(num_slots * hidden_size * dtype.itemsize, dtype=np.uint8))
        self._slot_rows = memory.view(dtype).view(num_slots, hidden_size)
        self._block_size = block_size

    def settle(self, parts: Sequence[tuple[ComputedSpan, range]], rows: torch.Tensor) -> None:
        """Make the rows that each span's owner is owed `ready`, in order of position; every span has an owner.

        `rows` (num_rows, hidden_size) on the host are copied; the range of a span has the row of each of its positions.
        """
        made = [(span, rows[indices.start : indices.stop : indices.step]) for span, indices in parts]
        if self._slot_rows is not None:
            # First, because a span may follow positions that another request computes in the same step. Also those of
            # an ended request: its blocks stay in the prefix cache, where another one may find them.
            for span, of_span in made:
                for slots, positions in self._slots(span, span.start, span.end):
                    self._slot_rows[slots] = of_span[positions]
        for span, of_span in made:
            owner = span.owner
            assert owner is not None
            if owner.next_position < span.start:
                self._add_cached(span, owner)
            num_owed = span.end - owner.next_position
            if num_owed > 0:
                owner.ready.append(of_span[-num_owed:].clone())
                owner.next_position += num_owed

    def _add_cached(self, span: ComputedSpan, owner: RequestRows) -> None:
        """Make the rows before `span` ready, which other requests computed."""
        if self._slot_rows is None:
            owner.problem = (
                f"request {span.request_id}: positions {owner.next_position} to {span.start - 1} were never computed "
                "here, and no rows are kept for cached blocks"
            )
        else:
            cached = [self._slot_rows[slots] for slots, _ in self._slots(span, owner.next_position, span.start)]
            owner.ready.append(torch.cat(cached))
        owner.next_position = span.start

    def _slots(self, span: ComputedSpan, start: int, end: int) -> Iterator[tuple[slice, slice]]:
        """Yield the slots of the positions [start, end) by block, and which of these positions they are."""
        size = self._block_size
        for index in range(start // size, -(-end // size)):
            first, last = max(start, index * size), min(end, index * size + size)
            moved_by = (span.block_ids[index] - index) * size
            yield slice(first + moved_by, last + moved_by), slice(first - start, last - start)
