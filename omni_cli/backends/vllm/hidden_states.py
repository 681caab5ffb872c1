"""Track which hidden-state rows of a request have been sent, so that every position is sent exactly once.

vLLM does not compute each position exactly once and in order: a prefix may come from the KV cache, a preempted request
is recomputed, a long prompt is split over steps, and rejected draft tokens are rolled back. The tracker determines
which rows of a computed span have not been sent yet, and keeps the rows of cached blocks for prefix hits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch


@dataclass(eq=False, slots=True)
class SentRows:
    """The progress of one request: its rows have been sent up to position `next_position`."""

    next_position: int = 0


class ComputedSpan(NamedTuple):
    """Positions [start, start + length) of `request_id`, computed as rows [row, row + length) of the step's batch.

    `num_draft_tokens` of the positions were drafted, and the last of them may be rejected. `sent` is set if the request
    wants its rows; `block_ids` are then its KV-cache blocks, a list to which vLLM only appends.
    """

    request_id: str
    start: int
    length: int
    row: int
    num_draft_tokens: int = 0
    sent: SentRows | None = None
    block_ids: Sequence[int] = ()

    @property
    def end(self) -> int:
        return self.start + self.length

    def drop_rejected(self, num_sampled_tokens: int) -> ComputedSpan:
        """Return the span without rejected draft tokens; a step samples one more token than it accepts."""
        rejected = max(0, self.num_draft_tokens - max(0, num_sampled_tokens - 1))
        return self._replace(length=self.length - rejected, num_draft_tokens=0)


class HiddenStateTracker:
    """Per-request accounting of rows (num_tokens, hidden_size) on the host.

    Requests begin and are forgotten in one thread, and steps are resolved, in order, in one that may be another. A step
    in progress may outlive its request.
    """

    def __init__(self) -> None:
        self.requests: dict[str, SentRows] = {}
        self._slot_rows: torch.Tensor | None = None
        self._block_size = 0

    def begin(self, request_id: str) -> None:
        """Start accounting for a request that wants its rows."""
        self.requests.setdefault(request_id, SentRows())

    def forget(self, request_id: str) -> None:
        self.requests.pop(request_id, None)

    def keep_cached_rows(self, num_blocks: int, block_size: int, hidden_size: int, dtype: torch.dtype) -> None:
        """Allocate one row per KV-cache slot on the host; the system commits memory only as rows are written."""
        self._slot_rows = torch.empty((num_blocks * block_size, hidden_size), dtype=dtype)
        self._block_size = block_size

    def resolve(self, computed: Sequence[tuple[ComputedSpan, torch.Tensor]]) -> dict[str, torch.Tensor]:
        """Return by request the rows that have not been sent, in order of position; no entry where there are none.

        `computed` are the step's spans, each with its rows (length, hidden_size) on the host, which are copied.
        """
        if self._slot_rows is not None:
            # First, because a span may follow positions that another request computes in the same step. Also those of
            # an ended request: its blocks stay in the prefix cache, where another one may find them.
            for span, rows in computed:
                for slots, positions in self._slots(span, span.start, span.end):
                    self._slot_rows[slots] = rows[positions]
        return {span.request_id: unsent for span, rows in computed if len(unsent := self._unsent(span, rows))}

    def _unsent(self, span: ComputedSpan, rows: torch.Tensor) -> torch.Tensor:
        assert span.sent is not None
        begin = span.sent.next_position
        span.sent.next_position = max(begin, span.end)
        if begin < span.start:
            return torch.cat([*self._read_cached(span, begin), rows])
        return rows[begin - span.start :].clone()

    def _read_cached(self, span: ComputedSpan, begin: int) -> list[torch.Tensor]:
        """Return the rows from `begin` to the span, which other requests computed."""
        if self._slot_rows is None:
            raise RuntimeError(
                f"request {span.request_id}: positions {begin} to {span.start - 1} were never computed here, "
                "and no rows are kept for cached blocks"
            )
        return [self._slot_rows[slots] for slots, _ in self._slots(span, begin, span.start)]

    def _slots(self, span: ComputedSpan, start: int, end: int) -> Iterator[tuple[slice, slice]]:
        """Yield the slots of the positions [start, end) by block, and which of these positions they are."""
        size = self._block_size
        for index in range(start // size, -(-end // size)):
            first, last = max(start, index * size), min(end, index * size + size)
            moved_by = (span.block_ids[index] - index) * size
            yield slice(first + moved_by, last + moved_by), slice(first - start, last - start)
