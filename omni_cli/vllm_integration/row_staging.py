"""Rows of several steps in one block on the device, copied and settled together, off the path of the steps.

A decoding step makes a few rows per request, and copying, slicing and accounting for them at each step takes longer
than computing them does on a small model. So a step only appends its rows to a block on the device. The block goes to
the host when it is full, or when somebody wants a request's rows; those of streamed requests go step by step.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from omni_cli.execution.copies import OutputCopy, PendingCopy
from omni_cli.execution.ranges import mark
from omni_cli.vllm_integration.row_ledger import ComputedSpan, RowLedger

_BLOCK_BYTES = 1 << 20


@dataclass(eq=False, slots=True)
class StepRows:
    """Rows of a block from `begin` on: those of `spans` in their order, which are the step `number`.

    With more than one of `num_steps`, each span has one position, and each further step the next position of each.
    `accepted` are the spans without rejected draft tokens, if there are drafts.
    """

    spans: Sequence[ComputedSpan]
    begin: int
    number: int
    num_steps: int = 1
    accepted: Sequence[ComputedSpan] | None = None

    @property
    def end(self) -> int:
        return self.begin + self.num_steps * sum(span.length for span in self.spans)

    def num_returned(self, num_returned: int) -> int:
        """Return how many of its steps are among the first `num_returned` of all."""
        return min(max(num_returned - self.number, 0), self.num_steps)

    def split(self, num_steps: int) -> StepRows:
        """Remove the first steps and return them."""
        first = StepRows(self.spans, self.begin, self.number, num_steps, self.accepted)
        self.begin, self.number, self.num_steps = first.end, self.number + num_steps, self.num_steps - num_steps
        self.spans = self.later(num_steps)
        return first

    def later(self, num_steps: int) -> list[ComputedSpan]:
        return [span._replace(start=span.start + num_steps) for span in self.spans]

    def parts(self, begin: int) -> Iterator[tuple[ComputedSpan, range]]:
        """Yield the positions of each request with their rows, counted from the row `begin` of the block."""
        row = self.begin - begin
        for index, span in enumerate(self.spans):
            if self.num_steps > 1:
                yield span._replace(length=self.num_steps), range(row + index, self.end - begin, len(self.spans))
                continue
            accepted = span if self.accepted is None else self.accepted[index]
            yield accepted, range(row, row + accepted.length)
            row += span.length


class _CopiedSteps(NamedTuple):
    """Steps in order whose rows are copied together; the first row is at `begin` of their block."""

    steps: deque[StepRows]
    begin: int
    pending: PendingCopy


class RowStaging:
    """Steps are kept in one thread, return in one and in the same order, and are settled in any.

    `copies` returns the stage's output copy. An owner's rows are settled before they are taken.
    """

    def __init__(self, ledger: RowLedger, copies: Callable[[], OutputCopy]) -> None:
        self._ledger = ledger
        ledger.before_taking = self.settle
        self._copies = copies
        self._block: torch.Tensor | None = None
        self._num_used = 0
        self._num_kept = 0
        self._num_returned = 0
        self._latest: StepRows | None = None
        self._open: deque[StepRows] = deque()
        self._copied: deque[_CopiedSteps] = deque()
        self._lock = threading.Lock()
        self._settling = threading.Lock()

    def keep(self, parts: Sequence[torch.Tensor], spans: Sequence[ComputedSpan] | None) -> StepRows:
        """Append a step's rows, which are `parts` (num_rows, hidden_size) on the device, one after another.

        Without `spans`, it has the next position of each span of the step before, which had one position of each.
        """
        num_rows = sum(len(part) for part in parts)
        with self._lock:
            if self._block is None or self._num_used + num_rows > len(self._block):
                self._copy(self._open)
                self._open = deque()
                (hidden_size,) = parts[0].shape[1:]
                fitting = _BLOCK_BYTES // (hidden_size * parts[0].element_size())
                self._block = parts[0].new_empty((max(num_rows, fitting), hidden_size))
                self._num_used = 0
            begin = self._num_used
            for part in parts:
                end = self._num_used + len(part)
                self._block[self._num_used : end] = part
                self._num_used = end
            step = self._noted(begin, spans)
            self._num_kept += 1
            if any(span.owner is not None and span.owner.streams for span in step.spans):
                self._copy(self._open)
                self._open = deque()
        self._settle_arrived()
        return step

    def _noted(self, begin: int, spans: Sequence[ComputedSpan] | None) -> StepRows:
        latest = self._latest
        if spans is None:
            assert latest is not None
            if self._open:
                latest.num_steps += 1
                return latest
            spans = latest.later(self._num_kept - latest.number)
        self._latest = StepRows(spans, begin, self._num_kept)
        self._open.append(self._latest)
        return self._latest

    def returned(self) -> None:
        """Note that the tokens of one more step have arrived, and so the device has made its rows."""
        self._num_returned += 1

    def settle(self) -> None:
        """Wait for the rows of all steps that have returned, and give them to their owners."""
        with self._settling:
            with self._lock:
                self._copy(_first_returned(self._open, self._num_returned), is_made=True)
            while self._settle_first():
                pass

    def _settle_arrived(self) -> None:
        """Settle what has arrived, so that page-locked memory is returned; leave it to a thread that is doing so."""
        if self._copied and self._settling.acquire(blocking=False):
            try:
                while self._copied and self._copied[0].pending.ready() and self._settle_first():
                    pass
            finally:
                self._settling.release()

    def _copy(self, steps: deque[StepRows], *, is_made: bool = False) -> None:
        """Start to copy the rows of `steps`."""
        if not steps:
            return
        assert self._block is not None
        begin = steps[0].begin
        rows = self._block[begin : steps[-1].end]
        with mark("output copy"):
            # On a CPU there is nothing to copy, and a copy is what the counters report.
            pending = self._copies().start(rows, reused=rows.device.type == "cpu", is_made=is_made)
        self._copied.append(_CopiedSteps(steps, begin, pending))

    def _settle_first(self) -> bool:
        """Settle the first copied steps that have returned; False if there are none."""
        if not self._copied:
            return False
        copied = self._copied[0]
        with self._lock:  # of the latest step, some positions may have returned and others not
            steps = _first_returned(copied.steps, self._num_returned)
        if not steps:
            return False
        with mark("wait for output copy"):
            rows = copied.pending.get()
        if not copied.steps:
            self._copied.popleft()
        self._ledger.settle([part for step in steps for part in step.parts(copied.begin)], rows)
        return True


def _first_returned(steps: deque[StepRows], num_returned: int) -> deque[StepRows]:
    """Remove the steps that have returned from `steps`: vLLM starts a step before the one before it has."""
    returned: deque[StepRows] = deque()
    while steps and (count := steps[0].num_returned(num_returned)):
        returned.append(steps[0].split(count) if count < steps[0].num_steps else steps.popleft())
    return returned
