"""Rows of several steps in one block on the device, copied and settled together, off the path of the steps.

A decoding step makes a few rows per request, and copying, slicing and accounting for them at each step takes longer
than computing them does on a small model. So a step only appends its rows to a block on the device. The block goes to
the host when it is full, or when somebody wants a request's rows; those of streamed requests go step by step.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from omni_cli.execution.copies import OutputCopy, PendingCopy
from omni_cli.execution.ranges import mark
from omni_cli.vllm_integration.row_ledger import ComputedSpan, RequestRows, RowLedger

_BLOCK_BYTES = 1 << 20


@dataclass(eq=False, slots=True)
class StepRows:
    """The rows [begin, end) of a block, which one step made for `spans`, in their order.

    `accepted` are the spans without rejected draft
    tokens, None until it is known which were rejected.
    """

    spans: Sequence[ComputedSpan]
    begin: int
    end: int
    accepted: Sequence[ComputedSpan] | None = None
    is_settled: bool = False


class _CopiedSteps(NamedTuple):
    """Steps in order whose rows are copied together; the first row is at `begin` of their block."""

    steps: Sequence[StepRows]
    begin: int
    pending: PendingCopy

    @property
    def num_known(self) -> int:
        """The number of steps that have returned: vLLM starts a step before the one before it has."""
        return next((index for index, step in enumerate(self.steps) if step.accepted is None), len(self.steps))


class OwedRows:
    """The rows of one request up to and including a step; pickled, as between processes, it becomes the rows."""

    __slots__ = ("_owner", "_staging", "_step")

    def __init__(self, staging: RowStaging, owner: RequestRows, step: StepRows) -> None:
        self._staging, self._owner, self._step = staging, owner, step

    def take(self) -> torch.Tensor | None:
        """Wait for the rows that have not been taken, (num_rows, hidden_size); None if there are none."""
        self._staging.settle(self._step)
        return self._owner.take()

    def __reduce__(self) -> tuple[Callable[[torch.Tensor | None], torch.Tensor | None], tuple[torch.Tensor | None]]:
        return _as_it_is, (self.take(),)


def _as_it_is(rows: torch.Tensor | None) -> torch.Tensor | None:
    return rows


class RowStaging:
    """Steps are kept in one thread, and settled in any; `copies` returns the stage's output copy."""

    def __init__(self, ledger: RowLedger, copies: Callable[[], OutputCopy]) -> None:
        self._ledger = ledger
        self._copies = copies
        self._block: torch.Tensor | None = None
        self._num_used = 0
        self._open: list[StepRows] = []
        self._copied: deque[_CopiedSteps] = deque()
        self._lock = threading.Lock()
        self._settling = threading.Lock()

    def keep(self, parts: Sequence[torch.Tensor], spans: Sequence[ComputedSpan]) -> StepRows:
        """Append a step's rows, which are `parts` (num_rows, hidden_size) on the device, one after another."""
        num_rows = sum(len(part) for part in parts)
        with self._lock:
            if self._block is None or self._num_used + num_rows > len(self._block):
                self._copy(len(self._open))
                (hidden_size,) = parts[0].shape[1:]
                fitting = _BLOCK_BYTES // (hidden_size * parts[0].element_size())
                self._block = parts[0].new_empty((max(num_rows, fitting), hidden_size))
                self._num_used = 0
            begin = self._num_used
            for part in parts:
                end = self._num_used + len(part)
                self._block[self._num_used : end] = part
                self._num_used = end
            step = StepRows(spans, begin, self._num_used)
            self._open.append(step)
            if any(span.owner is not None and span.owner.streams for span in spans):
                self._copy(len(self._open))
        self._settle_arrived()
        return step

    def settle(self, last: StepRows) -> None:
        """Wait for the rows of all steps up to `last`, and give them to their owners."""
        with self._settling:
            with self._lock:
                if last in self._open:
                    # The tokens of these steps have arrived, so the device has made their rows, too.
                    self._copy(self._open.index(last) + 1, is_made=True)
            while not last.is_settled:
                self._settle_first()

    def _settle_arrived(self) -> None:
        """Settle what has arrived, so that page-locked memory is returned; leave it to a thread that is doing so."""
        if self._copied and self._settling.acquire(blocking=False):
            try:
                while self._copied and self._copied[0].num_known and self._copied[0].pending.ready():
                    self._settle_first()
            finally:
                self._settling.release()

    def _copy(self, num_steps: int, *, is_made: bool = False) -> None:
        """Start to copy the first of the open steps."""
        steps, self._open = self._open[:num_steps], self._open[num_steps:]
        if not steps:
            return
        assert self._block is not None
        rows = self._block[steps[0].begin : steps[-1].end]
        with mark("output copy"):
            # On a CPU there is nothing to copy, and a copy is what the counters report.
            pending = self._copies().start(rows, reused=rows.device.type == "cpu", is_made=is_made)
        self._copied.append(_CopiedSteps(steps, steps[0].begin, pending))

    def _settle_first(self) -> None:
        """Settle the first copied steps, up to one that has not returned."""
        copied = self._copied[0]
        steps, later = copied.steps[: copied.num_known], copied.steps[copied.num_known :]
        with mark("wait for output copy"):
            rows = copied.pending.get()[steps[0].begin - copied.begin : steps[-1].end - copied.begin]
        computed = [span for step in steps for span in step.spans]
        accepted = [span for step in steps for span in step.accepted or ()]
        if any(span.num_draft_tokens for span in computed):
            parts = rows.split([span.length for span in computed])
            rows = torch.cat([part[: span.length] for part, span in zip(parts, accepted, strict=True)])
        if later:
            self._copied[0] = copied._replace(steps=later)
        else:
            self._copied.popleft()
        for step in steps:
            step.is_settled = True
        self._ledger.settle(accepted, rows)
