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
from omni_cli.vllm_integration.row_ledger import ComputedSpan, RequestRows, RowLedger

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

    def num_of_first(self, num_steps: int) -> int:
        """Return how many of its steps are among the first `num_steps` of all."""
        return min(max(num_steps - self.number, 0), self.num_steps)

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


class OwedRows:
    """A request's rows of the first `num_steps` steps; pickled, as between processes, it becomes the rows.

    Rows of later steps are left: they are not of the request if it has ended.
    """

    __slots__ = ("_num_steps", "_owner", "_staging")

    def __init__(self, staging: RowStaging, owner: RequestRows, num_steps: int) -> None:
        self._staging, self._owner, self._num_steps = staging, owner, num_steps

    def take(self) -> torch.Tensor | None:
        """Wait for the rows that have not been taken, (num_rows, hidden_size); None if there are none."""
        self._staging.settle(self._num_steps)
        return self._owner.take()

    def __reduce__(self) -> tuple[Callable[[torch.Tensor | None], torch.Tensor | None], tuple[torch.Tensor | None]]:
        return _as_it_is, (self.take(),)


def _as_it_is(rows: torch.Tensor | None) -> torch.Tensor | None:
    return rows


class RowStaging:
    """Steps are kept in one thread, return in one and in the same order, and are settled in any.

    `copies` returns the stage's output copy.
    """

    def __init__(self, ledger: RowLedger, copies: Callable[[], OutputCopy]) -> None:
        self._ledger = ledger
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

    def keep(
        self, rows: torch.Tensor, parts: Sequence[tuple[int, int]], spans: Sequence[ComputedSpan] | None
    ) -> StepRows:
        """Append a step's rows, which are `rows` (num_rows, hidden_size) on the device from begin to end of each part.

        Without `spans`, it has the next position of each span of the step before, which had one position of each.
        """
        num_rows = sum(end - begin for begin, end in parts)
        with self._lock:
            if self._block is None or self._num_used + num_rows > self._block.shape[0]:
                self._copy(self._open)
                self._open = deque()
                fitting = _BLOCK_BYTES // (rows.shape[1] * rows.element_size())
                self._block = rows.new_empty((max(num_rows, fitting), rows.shape[1]))
                self._num_used = 0
            first = self._num_used
            for begin, end in parts:
                used = self._num_used + end - begin
                self._block[self._num_used : used].copy_(rows[begin:end])
                self._num_used = used
            step = self._noted(first, spans)
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

    def returned(self, step: StepRows, accepted: Sequence[ComputedSpan] | None = None) -> dict[str, OwedRows]:
        """Note that the tokens of the next step have arrived, and so the device has made its rows.

        `step` is what `keep` returned, `accepted` its spans without rejected draft tokens, if there are drafts. Return
        what its requests are owed by then.
        """
        if accepted is not None:
            step.accepted = accepted
        self._num_returned += 1
        return {
            span.request_id: OwedRows(self, span.owner, self._num_returned)
            for span in step.spans
            if span.owner is not None
        }

    def settle(self, num_steps: int) -> None:
        """Wait for the rows of the first `num_steps` steps, which have returned, and give them to their owners."""
        with self._settling:
            with self._lock:
                self._copy(_removed(self._open, num_steps), is_made=True)
            while self._settle_first(num_steps):
                pass

    def _settle_arrived(self) -> None:
        """Settle what has arrived, so that page-locked memory is returned; leave it to a thread that is doing so."""
        if self._copied and self._settling.acquire(blocking=False):
            try:
                while self._copied and self._copied[0].pending.ready() and self._settle_first(self._num_returned):
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

    def _settle_first(self, num_steps: int) -> bool:
        """Settle the first copied rows, those of the first `num_steps` steps; False if there are none."""
        if not self._copied:
            return False
        copied = self._copied[0]
        with self._lock:  # the latest step may be among them, and split
            steps = _removed(copied.steps, num_steps)
        if not steps:
            return False
        with mark("wait for output copy"):
            rows = copied.pending.get()
        if not copied.steps:
            self._copied.popleft()
        self._ledger.settle([part for step in steps for part in step.parts(copied.begin)], rows)
        return True


def _removed(steps: deque[StepRows], num_steps: int) -> deque[StepRows]:
    """Remove those among the first `num_steps` of all from `steps`: vLLM starts a step before the last has returned."""
    removed: deque[StepRows] = deque()
    while steps and (count := steps[0].num_of_first(num_steps)):
        removed.append(steps[0].split(count) if count < steps[0].num_steps else steps.popleft())
    return removed
