"""Load the variants, warm them up, and interleave them until a verdict is reached or the time is up."""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Literal, Protocol

from omni_cli.measure.bench.checks import Free, lacking, mode_not_used, private_bytes, read_free, setting_not_in_effect
from omni_cli.measure.bench.protocol import Load, Loaded, Loading, Ran
from omni_cli.measure.bench.record_builder import RecordBuilder
from omni_cli.measure.bench.utilisation import UtilisationSampler
from omni_cli.measure.bench.variant_process import VariantError
from omni_cli.records.record import Record, Sample, StoppingPlan
from omni_cli.stats.estimate import MIN_BLOCKS
from omni_cli.stats.sequential import ALPHA, plan_looks

HANG_FACTOR = 20
MIN_HANG_S = 60.0
"""An iteration that takes longer than this, and than `HANG_FACTOR` times the longest so far, is considered hung."""

MIN_PER_LOAD, MAX_PER_LOAD = 4, 32

MIN_BLOCK_S = 0.5
"""Minimum length of a block: noise lasts longer than a short iteration, and each block ends with a written record."""

FEW_BLOCKS = 2 * MIN_BLOCKS

Interleaving = Literal["iterations", "loads", "none"]


class OnFailure(Enum):
    """The end of a variant that fails: of the whole measurement, or of this variant only."""

    ABORT = auto()
    DROP = auto()


@dataclass(frozen=True)
class RunLimits:
    """Limits of a measurement: `num_iters` iterations of each variant, as far as time allows; without that number,
    until the verdict is reached. `alpha` is the error of all its looks together. Long iterations exceed the budget, up
    to `min_rounds` of each variant. Without number and time, each is measured for about as long as it takes to load."""

    num_iters: int | None
    num_iters_warmup: int
    time_budget_s: float | None
    alpha: float = ALPHA
    min_rounds: int = 0


@dataclass(frozen=True)
class BlockSchedule:
    """`blocks` blocks of `rounds` rounds; every variant runs once per round. `total_rounds` cuts the last block."""

    blocks: int
    rounds: int
    total_rounds: int

    def block(self, block: int, num_variants: int) -> Iterator[int]:
        """Yield the variants in the order of this block.

        Two variants: A B B A, then B A A B, and so on. More: an order and its reverse, rotated from block to block.
        """
        rounds = min(self.rounds, self.total_rounds - block * self.rounds)
        order = list(range(num_variants))
        if num_variants > 2:
            first = block % num_variants
            order = order[first:] + order[:first]
        for number in range(rounds):
            yield from order if (block + number) % 2 == 0 else reversed(order)


def schedule_for_time(round_s: float, budget_s: float) -> BlockSchedule:
    """Plan as many blocks as fit into `budget_s`, at least one; a round takes about `round_s`.

    A block is A B B A, repeated if that is short. If only few blocks would fit, it is A B, and the next one B A.
    """
    rounds = 2 * max(1, math.ceil(MIN_BLOCK_S / (2 * round_s)))
    if budget_s / (rounds * round_s) < FEW_BLOCKS:
        rounds = 2 if budget_s / (2 * round_s) >= FEW_BLOCKS else 1
    blocks = max(1, math.floor(budget_s / (rounds * round_s)))
    return BlockSchedule(blocks, rounds, blocks * rounds)


def schedule_for_count(num_iters: int, round_s: float) -> BlockSchedule:
    """Plan exactly `num_iters` iterations of each variant."""
    rounds = 2 * max(1, math.ceil(MIN_BLOCK_S / (2 * round_s)))
    rounds = max(1, min(rounds, num_iters // FEW_BLOCKS // 2 * 2))
    return BlockSchedule(math.ceil(num_iters / rounds), rounds, num_iters)


_Block = Callable[[int, BlockSchedule], Awaitable[None]]


@dataclass(frozen=True)
class State:
    """After a block: `elapsed_s` of about `planned_s` are over."""

    blocks: int
    planned_blocks: int
    elapsed_s: float
    planned_s: float
    record: Record


class VariantRunner(Protocol):
    """The runner of a variant: a separate process (`VariantProcess`), or a connection to a server."""

    name: str

    @property
    def pid(self) -> int | None:
        """The process id; None if the variant uses no memory of this machine."""

    async def start(self) -> None: ...

    async def load(self, request: Load | None, on_loading: Callable[[Loading], None]) -> Loaded: ...

    async def run(
        self, number: int, *, when: str, outputs: Path | None = None, timeout_s: float | None = None
    ) -> Ran: ...

    async def close(self) -> None: ...


class Watcher(Protocol):
    """Receives the events of a measurement."""

    def loading(self, variant: str, event: Loading) -> None: ...

    def warming_up(self, variant: str) -> None: ...

    def falling_back(self, reason: str) -> None:
        """Report that not all variants fit into memory at once."""

    def block_done(self, state: State) -> None: ...


@dataclass
class Harness:
    """One measurement. `launch(index)` makes the runner of a variant, `load(index)` its first request;
    `decided(record)` is asked at planned looks only."""

    builder: RecordBuilder
    _: KW_ONLY
    launch: Callable[[int], VariantRunner]
    load: Callable[[int], Load | None]
    limits: RunLimits
    decided: Callable[[Record], bool]
    watcher: Watcher
    sampler: UtilisationSampler
    read_free: Callable[[], Free] = read_free
    on_failure: OnFailure = OnFailure.ABORT
    interleaving: Interleaving = field(default="none", init=False)

    def __post_init__(self) -> None:
        self._dropped: set[int] = set()
        self._first = 0
        # Seconds from the start of a process to a loaded variant.
        self._start_s = 0.0
        self._count = len(self.builder.measured)
        self._processes: dict[int, VariantRunner] = {}
        self._next_number = [0] * self._count
        # Seconds of an iteration, by variant, as its warm-up shows; and of the longest that any variant had so far.
        self._typical_s: dict[int, float] = {}
        self._longest_s = 0.0

    async def run(self) -> None:
        """Measure. The samples are in the record builder, however this ends.

        Raises `VariantError` if a variant failed; the record has its message, too.
        """
        try:
            await self._run()
        finally:
            await self.close()

    async def close(self) -> None:
        processes, self._processes = list(self._processes.values()), {}
        await asyncio.gather(*(process.close() for process in processes))

    async def _run(self) -> None:
        before = self.read_free()
        await self._prepare(0)
        while self._first in self._dropped:
            self._first += 1
            if self._first == self._count:
                return
            await self._prepare(self._first)
        reason = await self._memory_shortage(before)
        if reason is None:
            for variant in range(self._first + 1, self._count):
                await self._prepare(variant)
            self.interleaving = "iterations" if self._count > 1 else "none"
            run_block, schedule = self._interleave()
        else:
            self.watcher.falling_back(reason)
            self.interleaving = "loads"
            run_block, schedule = self._one_at_a_time()
        self.builder.note(interleaving=self.interleaving, rounds_per_block=schedule.rounds)
        if self.limits.num_iters is None:
            self.builder.sampling = StoppingPlan(looks=plan_looks(schedule.blocks), alpha=self.limits.alpha)
        try:
            with self.sampler:
                await self._sample(run_block, schedule)
        finally:
            self.builder.utilisation = self.sampler.utilisation()

    async def _prepare(self, variant: int) -> None:
        async with self._may_fail(variant):
            await self._load(variant)

    @asynccontextmanager
    async def _may_fail(self, variant: int) -> AsyncIterator[None]:
        """Drop the variant if it fails and the others continue."""
        try:
            yield
        except VariantError:
            if self.on_failure is OnFailure.ABORT:
                raise
            self._dropped.add(variant)
            if variant in self._processes:
                await self._processes.pop(variant).close()

    async def _sample(self, run_block: _Block, schedule: BlockSchedule) -> None:
        """Run block after block."""
        started_s = time.monotonic()
        for block in range(schedule.blocks):
            await run_block(block, schedule)
            elapsed_s = time.monotonic() - started_s
            self.sampler.block_ended()
            self.builder.utilisation = self.sampler.utilisation()
            done = block + 1
            state = State(done, schedule.blocks, elapsed_s, elapsed_s / done * schedule.blocks, self.builder.record())
            # In a thread, so that writing a record and computing an interval does not delay an interrupt.
            await asyncio.to_thread(self.watcher.block_done, state)
            # The decision to stop early may depend on the data only at the planned looks.
            looks = self.builder.sampling.looks
            if done in looks and await asyncio.to_thread(self.decided, state.record):
                return
            if elapsed_s + elapsed_s / done / 2 > self._budget_s(elapsed_s / done / schedule.rounds):
                return

    async def _memory_shortage(self, before: Free) -> str | None:
        """Return the reason why the other variants cannot be loaded beside the first one; None if they can."""
        pid = self._processes[self._first].pid
        if self._count == 1 or pid is None:
            return None
        after = self.read_free()
        host = await asyncio.to_thread(private_bytes, pid)
        devices = tuple(max(0, b - a) for b, a in zip(before.devices, after.devices, strict=False))
        return lacking(Free(host, devices), after, self._count - 1)

    def _interleave(self) -> tuple[_Block, BlockSchedule]:
        """Keep all variants loaded, and interleave their iterations."""
        round_s = sum(self._typical_s.values())
        limits = self.limits
        if limits.num_iters is None and limits.time_budget_s is not None:
            return self._interleaved_block, schedule_for_time(round_s, self._budget_s(round_s))
        num_iters = limits.num_iters or self._per_load(self._start_s)
        return self._interleaved_block, schedule_for_count(num_iters, round_s)

    def _budget_s(self, round_s: float) -> float:
        """Return the time for measuring, if a round takes `round_s`; infinite without a limit."""
        limits = self.limits
        return math.inf if limits.time_budget_s is None else max(limits.time_budget_s, limits.min_rounds * round_s)

    async def _interleaved_block(self, block: int, schedule: BlockSchedule) -> None:
        for position, variant in enumerate(schedule.block(block, self._count)):
            if variant not in self._dropped:
                async with self._may_fail(variant):
                    await self._iterate(variant, block, position)

    def _per_load(self, load_s: float) -> int:
        """Return the iterations that take about as long as loading, within bounds."""
        return min(max(round(load_s / self._typical_s[self._first]), MIN_PER_LOAD), MAX_PER_LOAD)

    def _one_at_a_time(self) -> tuple[_Block, BlockSchedule]:
        """Load one variant at a time, for several iterations, in reverse order from block to block."""
        limits = self.limits
        if limits.num_iters is None and limits.time_budget_s is None:
            per_load = self._per_load(self._start_s)
            return self._load_block, BlockSchedule(1, per_load, per_load)
        load_s = max(sum(stage.load_s for stage in self.builder.measured[self._first].stages), 0.1)
        per_load = self._per_load(load_s)
        if limits.num_iters is not None:
            return self._load_block, BlockSchedule(-(-limits.num_iters // per_load), per_load, limits.num_iters)
        block_s = self._count * per_load * self._typical_s[self._first] + (self._count - 1) * 2 * load_s
        blocks = max(1, int(self._budget_s(block_s / per_load) / block_s))
        return self._load_block, BlockSchedule(blocks, per_load, blocks * per_load)

    async def _load_block(self, block: int, schedule: BlockSchedule) -> None:
        iterations = min(schedule.rounds, schedule.total_rounds - block * schedule.rounds)
        order = range(self._count) if block % 2 == 0 else reversed(range(self._count))
        position = 0
        for variant in order:
            if variant in self._dropped:
                continue
            async with self._may_fail(variant):
                if variant not in self._processes:
                    await self.close()
                    await self._load(variant)
                for _ in range(iterations):
                    await self._iterate(variant, block, position)
                    position += 1

    async def _load(self, variant: int) -> None:
        measured = self.builder.measured[variant]
        process = self._processes[variant] = self.launch(variant)
        started_s = time.monotonic()
        try:
            await process.start()
            loaded = await process.load(self.load(variant), lambda event: self.watcher.loading(process.name, event))
            self._start_s = time.monotonic() - started_s
            self._check_settings(variant, loaded)
        except VariantError as error:
            measured.error = error.message
            raise
        await self._warm_up(variant)

    def _check_settings(self, variant: int, loaded: Loaded) -> None:
        measured = self.builder.measured[variant]
        measured.add_stages(loaded.stages)
        measured.server = loaded.server
        reason = setting_not_in_effect(measured.variant_config, loaded.stages)
        if reason is not None:
            name = measured.variant_config.name
            raise VariantError(
                f"variant `{name}` does not take effect: {reason}", hint="this machine or build does not support it"
            )

    def _check_mode_used(self, variant: int, sample: Sample) -> None:
        measured = self.builder.measured[variant]
        for stage in measured.stages:
            reason = mode_not_used(
                stage,
                sample.execution_counters.get(stage.name, {}),
                measured.execution_counters.get(stage.name, {}),
                measured.variant_config.varied_keys(stage.name),
            )
            if reason is not None:
                name = measured.variant_config.name
                measured.error = f"variant `{name}` did not run as requested (block {sample.block}): {reason}"
                raise VariantError(measured.error, hint="its times belong to another configuration")

    async def _warm_up(self, variant: int) -> None:
        """Warm up at least once: the first iteration includes caches and compilation."""
        self.watcher.warming_up(self.builder.measured[variant].variant_config.name)
        times: list[float] = []
        for number in range(max(self.limits.num_iters_warmup, 1)):
            ran = await self._one(variant, number, "warming up", None)
            self.builder.measured[variant].ran(number, ran)
            _check_cancelled()
            times.append(_seconds(ran))
        self._next_number[variant] = max(self._next_number[variant], len(times))
        # The first iteration is not representative; of two, take the second.
        self._typical_s[variant] = statistics.median(times[1:] or times)
        self._longest_s = max(self._longest_s, self._typical_s[variant])

    async def _iterate(self, variant: int, block: int, position: int) -> None:
        number = self._next_number[variant]
        limit_s = max(MIN_HANG_S, HANG_FACTOR * self._longest_s)
        ran = await self._one(variant, number, f"block {block}", limit_s)
        self._next_number[variant] = number + 1
        self._longest_s = max(self._longest_s, _seconds(ran))
        sample = self.builder.add_sample(variant, number, ran, block=block, position=position)
        self._check_mode_used(variant, sample)
        _check_cancelled()

    async def _one(self, variant: int, number: int, when: str, limit_s: float | None) -> Ran:
        outputs = self.builder.output_file(variant, number)
        try:
            return await self._processes[variant].run(number, when=when, outputs=outputs, timeout_s=limit_s)
        except VariantError as error:
            self.builder.measured[variant].error = error.message
            raise


def _check_cancelled() -> None:
    """Raise the cancellation that a runner held back, in order to return what it had measured."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _seconds(ran: Ran) -> float:
    """Return the seconds that the iteration kept the machine busy."""
    return ran.e2e_s if ran.lasted_s is None else ran.lasted_s
