"""Track which hidden-state rows of a request have been sent, so that every position is sent exactly once.

vLLM does not compute each position exactly once and in order: a prefix may come from the KV cache, a preempted request
is recomputed, a long prompt is split over steps, and rejected draft tokens are rolled back. The ledger determines which
rows of a computed span have not been sent yet, and keeps the rows of cached blocks for prefix hits.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple

import torch


class ComputedSpan(NamedTuple):
    """Positions [start, start + length) of `request_id`, computed as rows [row, row + length) of the step's batch.

    `block_ids` are the KV-cache blocks of the request's positions from block `first_block` on; None without prefix
    caching. `num_draft_tokens` of the positions were drafted, and the last of them may be rejected.
    """

    request_id: str
    start: int
    length: int
    row: int
    num_draft_tokens: int = 0
    block_ids: Sequence[int] | None = None
    first_block: int = 0

    @property
    def end(self) -> int:
        return self.start + self.length

    def accepted(self, num_sampled_tokens: int) -> ComputedSpan:
        """Return the span without rejected draft tokens; a step samples one more token than it accepts."""
        rejected = max(0, self.num_draft_tokens - max(0, num_sampled_tokens - 1))
        return self._replace(length=self.length - rejected, num_draft_tokens=0)


class RowLedger:
    """Per-request accounting of rows (num_tokens, hidden_size) on the host.

    Steps are settled in order, but perhaps in a thread other than the one that begins and forgets requests.
    """

    def __init__(self) -> None:
        self._next_position: dict[str, int] = {}
        self._lock = threading.Lock()
        self._slot_rows: torch.Tensor | None = None
        self._block_size = 0

    def begin(self, request_id: str) -> None:
        """Start accounting for a request that wants its rows."""
        with self._lock:
            self._next_position.setdefault(request_id, 0)

    def forget(self, request_id: str) -> None:
        """Drop an ended request, and its rows from a step that is still in progress."""
        with self._lock:
            self._next_position.pop(request_id, None)

    def keep_cached_rows(self, num_blocks: int, block_size: int, hidden_size: int, dtype: torch.dtype) -> None:
        """Allocate one row per KV-cache slot on the host; the system commits memory only as rows are written."""
        self._slot_rows = torch.empty((num_blocks * block_size, hidden_size), dtype=dtype)
        self._block_size = block_size

    @property
    def keeps_cached_rows(self) -> bool:
        return self._slot_rows is not None

    def with_blocks(self, span: ComputedSpan, block_ids: Sequence[int]) -> ComputedSpan:
        """Return `span` with the blocks that settling it needs, out of all `block_ids` of the request."""
        first = min(span.start, self._next_position.get(span.request_id, 0)) // self._block_size
        return span._replace(block_ids=block_ids[first : -(-span.end // self._block_size)], first_block=first)

    def settle_step(self, spans: Sequence[ComputedSpan], rows: torch.Tensor) -> list[torch.Tensor]:
        """Return the rows owed to each span's request: (num_owed, hidden_size), in order of position.

        `rows` (sum of the spans' lengths, hidden_size) on the host are the step's rows, span by span.
        """
        if self._slot_rows is not None:
            # Even for an ended request: its blocks stay in the prefix cache, where another request may find them.
            self._slot_rows[self._slots_of(spans)] = rows
        parts = rows.split([span.length for span in spans])
        return [self._owed(span, part) for span, part in zip(spans, parts, strict=True)]

    def _owed(self, span: ComputedSpan, rows: torch.Tensor) -> torch.Tensor:
        with self._lock:
            owed_from = self._next_position.get(span.request_id)
            if owed_from is None:
                return rows[:0]
            self._next_position[span.request_id] = max(owed_from, span.end)
        if owed_from >= span.end:
            return rows[:0]
        if owed_from == span.start:
            return rows
        if owed_from > span.start:
            return rows[owed_from - span.start :]
        return torch.cat([self._cached_rows(span, owed_from), rows])

    def _cached_rows(self, span: ComputedSpan, owed_from: int) -> torch.Tensor:
        if self._slot_rows is None:
            raise RuntimeError(
                f"request {span.request_id}: positions {owed_from} to {span.start - 1} were never computed here, "
                "and no rows are kept for cached blocks"
            )
        return self._slot_rows[self._slots(span, owed_from, span.start)]

    def _slots_of(self, spans: Sequence[ComputedSpan]) -> torch.Tensor:
        if all(span.length == 1 for span in spans):
            # Runs in every decoding step, and the next step waits for it: one small operation for all requests.
            return torch.tensor([self._slot(span) for span in spans])
        return torch.cat([self._slots(span, span.start, span.end) for span in spans])

    def _slot(self, span: ComputedSpan) -> int:
        assert span.block_ids is not None
        block, offset = divmod(span.start, self._block_size)
        return span.block_ids[block - span.first_block] * self._block_size + offset

    def _slots(self, span: ComputedSpan, start: int, end: int) -> torch.Tensor:
        assert span.block_ids is not None
        blocks, positions = torch.tensor(span.block_ids), torch.arange(start, end)
        of_position = blocks[positions // self._block_size - span.first_block]
        return of_position * self._block_size + positions % self._block_size
