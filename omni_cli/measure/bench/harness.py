"""Load the variants, warm them up, and interleave them until a verdict is reached or the time is up."""

from __future__ import annotations

import asyncio
import itertools
import math
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import Literal, Protocol

from omni_cli.core.energy import EnergyMeter
from omni_cli.measure.bench.checks import (
    Free,
    check_cancelled,
    lacking,
    mode_not_used,
    private_bytes,
    read_free,
    setting_not_in_effect,
)
from omni_cli.measure.bench.energy import EnergyLedger
from omni_cli.measure.bench.protocol import Loaded, Loading, Ran
from omni_cli.measure.bench.record_builder import RecordBuilder
from omni_cli.measure.bench.schedule import (
    FEW_BLOCKS,
    TURN_S,
    BlockSchedule,
    Halves,
    RunLimits,
    schedule_loads,
    schedule_rounds,
)
from omni_cli.measure.bench.utilisation import RunSpans, UtilisationSampler, run_a_turn
from omni_cli.measure.bench.variant_process import VariantError, VariantRunner
from omni_cli.records.record import Record, Sample, StoppingPlan
from omni_cli.stats.sequential import plan_looks

HANG_FACTOR = 20
MIN_HANG_S = 60.0
"""An iteration that takes longer than this, and than `HANG_FACTOR` times the longest so far, is considered hung."""

Interleaving = Literal["iterations", "turns", "loads", "none"]


_Block = Callable[[int, BlockSchedule], Awaitable[None]]


@dataclass(frozen=True)
class State:
    """After a block: at most about `left_s` are left."""

    blocks: int
    planned_blocks: int
    left_s: float
    record: Record


class Watcher(Protocol):
    """Receives the events of a measurement."""

    def loading(self, variant: str, event: Loading) -> None: ...

    def warming_up(self, variant: str) -> None: ...

    def falling_back(self, reason: str) -> None:
        """Report that not all variants fit into memory at once."""

    def block_done(self, state: State) -> None: ...


@dataclass
class Harness:
    """One measurement. `launch(index)` makes the runner of a variant; `decided(record)` is asked at planned looks only.
    `block_done(state)` is called in place of the watcher's. `both_orders`: on a processor, where the first-loaded of
    equal variants is slower, interleaved ones are loaded again in the other order at half time. `drops_failed`: the
    others go on without a variant that fails."""

    builder: RecordBuilder
    _: KW_ONLY
    launch: Callable[[int], VariantRunner]
    limits: RunLimits
    decided: Callable[[Record], bool]
    watcher: Watcher
    block_done: Callable[[State], None] | None = None
    sampler: UtilisationSampler = field(default_factory=UtilisationSampler)
    read_free: Callable[[], Free] = read_free
    meter: EnergyMeter | None = None
    drops_failed: bool = False
    both_orders: bool = False
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
        self._turn = 1  # iterations of a variant in a row
        self._spans = RunSpans(self._count)
        self._energy = EnergyLedger(self.builder.measured, self.meter, self._typical_s)

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
        await self._energy.measure_idle()
        before = self.read_free()
        reason = await self._load_all(before)
        if not self._processes:
            return
        try:
            with self.sampler:
                await self._plan_turns()
                run_block, schedule = self._plan(are_together=reason is None)
                self.builder.note(interleaving=self.interleaving, rounds_per_block=schedule.rounds)
                halves = await self._plan_halves(schedule.blocks)
                if self.limits.num_iters is None:
                    self.builder.sampling = StoppingPlan(looks=halves.looks, alpha=self.limits.alpha)
                await self._sample(run_block, schedule, halves)
        finally:
            self._note_load()

    async def _load_all(self, before: Free) -> str | None:
        """Load the variants; return the reason why all but the first one have to wait for its end."""
        for variant in range(self._count):
            self._first = variant
            await self._prepare(variant)
            if variant not in self._dropped:
                break
        else:
            return None
        reason = await self._memory_shortage(before)
        if reason is None:
            for variant in range(self._first + 1, self._count):
                await self._prepare(variant)
            self.interleaving = "iterations" if self._count > 1 else "none"
        else:
            self.builder.note(interleaving_reason=reason)
            self.watcher.falling_back(reason)
            self.interleaving = "loads"
        return reason

    def _note_load(self) -> None:
        self.builder.utilisation = self.sampler.utilisation()
        for variant, measured in enumerate(self.builder.measured):
            measured.device_load = self._spans.device_load(variant, self.sampler)

    async def _plan_turns(self) -> None:
        """Let variants run longer at a time if the user wants it, or if one drives a device to its power limit.

        Single iterations that alternate then all run at a clock that follows from their mean power.
        """
        turn_s = self.limits.turn_s if self._count > 1 else 0
        if turn_s is None:
            turn_s = TURN_S if await self._reaches_limit() else 0
        if not turn_s:
            return
        self._turn = math.ceil(turn_s / min(self._shortest_s(), turn_s))
        if self.interleaving == "iterations":
            self.interleaving = "turns"
        self.builder.note(turn_s=turn_s, iterations_per_turn=self._turn)

    def _shortest_s(self) -> float:
        return min((self._typical_s[variant] for variant in self._processes), default=TURN_S)

    async def _reaches_limit(self) -> bool:
        """Run each loaded variant for the length of a turn; return True if a device works at its power limit."""
        if self._shortest_s() >= TURN_S or not await asyncio.to_thread(self.sampler.has_devices):
            return False
        has_reached: list[bool] = []
        for variant in list(self._processes):
            async with self._may_fail(variant):
                self._typical_s[variant], is_at_limit = await run_a_turn(self.sampler, partial(self._warm, variant))
                has_reached.append(is_at_limit)
        self.sampler.restart()
        return any(has_reached)

    async def _plan_halves(self, blocks: int) -> Halves:
        """Plan to load again if the order matters here and either order gets enough blocks."""
        matters = self.both_orders and self.interleaving in ("iterations", "turns")
        matters = matters and all(process.pid is not None for process in self._processes.values())
        matters = matters and not await asyncio.to_thread(self.sampler.has_devices)
        if matters:
            self.builder.note(loading_orders=1)
        has_two = matters and blocks >= FEW_BLOCKS
        looks = plan_looks(blocks, orders=2 if has_two else 1) if self.limits.num_iters is None else ()
        return Halves(blocks, looks, None if has_two else 0)

    async def _load_again(self) -> float:
        """End the variants and load them in the other order; return the seconds."""
        began_s, order = time.monotonic(), [*reversed(self._processes)]
        await self.close()
        for variant in order:
            await self._prepare(variant)
        return time.monotonic() - began_s

    async def _prepare(self, variant: int) -> None:
        async with self._may_fail(variant):
            await self._load(variant)

    @asynccontextmanager
    async def _may_fail(self, variant: int) -> AsyncIterator[None]:
        """Drop the variant if it fails and the others continue."""
        try:
            yield
        except VariantError:
            if not self.drops_failed:
                raise
            self._dropped.add(variant)
            if variant in self._processes:
                await self._processes.pop(variant).close()

    async def _sample(self, run_block: _Block, schedule: BlockSchedule, halves: Halves) -> None:
        """Run block after block, with the variants loaded again at half time."""
        started_s = time.monotonic()
        for block in range(schedule.blocks):
            try:
                is_reversal = block > 0 and block == halves.reversed_from
                started_s += await self._load_again() if is_reversal else 0.0
                await run_block(block, schedule)
                if is_reversal:  # an order without a whole block cancels nothing
                    self.builder.loaded_again(block)
            except (asyncio.CancelledError, VariantError):
                self._energy.end_early()
                raise
            await self._energy.block_ended()
            elapsed_s = time.monotonic() - started_s
            self.sampler.block_ended()
            self._note_load()
            done, each_s = block + 1, elapsed_s / (block + 1)
            budget_s = self.limits.budget_s(each_s / schedule.rounds)
            left_s = max(min(each_s * schedule.blocks, budget_s) - elapsed_s, 0.0)
            state = State(done, schedule.blocks, left_s, self.builder.record())
            # In a thread, so that writing a record and computing an interval does not delay an interrupt.
            await asyncio.to_thread(self.block_done or self.watcher.block_done, state)
            is_over = halves.is_over(done, (elapsed_s + each_s / 2) / budget_s)
            # The decision to stop early may depend on the data only at the planned looks.
            if not is_over and halves.is_look(done):
                is_over = await asyncio.to_thread(self.decided, state.record)
            if is_over and halves.reversed_from is not None:
                return
            if is_over:
                halves = replace(halves, reversed_from=done)

    async def _memory_shortage(self, before: Free) -> str | None:
        """Return the reason why the other variants cannot be loaded beside the first one; None if they can."""
        pid = self._processes[self._first].pid
        if self._count == 1 or pid is None:
            return None
        after = self.read_free()
        host = await asyncio.to_thread(private_bytes, pid)
        devices = tuple(max(0, b - a) for b, a in zip(before.devices, after.devices, strict=False))
        return lacking(Free(host, devices), after, self._count - 1)

    async def _interleaved_block(self, block: int, schedule: BlockSchedule) -> None:
        places = itertools.groupby(enumerate(schedule.block(block, self._count)), key=lambda item: item[1])
        for variant, group in places:
            positions = [position for position, _ in group]
            if variant not in self._dropped:
                async with self._may_fail(variant):
                    await self._take_turn(variant, block, positions)

    async def _take_turn(self, variant: int, block: int, positions: Sequence[int]) -> None:
        """Run a variant in a row; the last iterations are counted, at these positions of the block."""
        for position in [None] * (self._turn - len(positions)) + [*positions]:
            await self._iterate(variant, block, position)

    def _plan(self, *, are_together: bool) -> tuple[_Block, BlockSchedule]:
        """Interleave the variants, which are loaded; or load one at a time, for several iterations, in reverse order
        from block to block."""
        limits, iteration_s = self.limits, self._typical_s[self._first]
        if are_together:
            round_s = sum(self._typical_s.values())
            return self._interleaved_block, schedule_rounds(limits, self._start_s, iteration_s, round_s, self._turn)
        is_unlimited = limits.num_iters is None and limits.time_budget_s is None
        load_s = max(sum(stage.load_s for stage in self.builder.measured[self._first].stages), 0.1)
        load_s = self._start_s if is_unlimited else load_s
        return self._load_block, schedule_loads(limits, load_s, iteration_s, self._count, self._turn)

    async def _load_block(self, block: int, schedule: BlockSchedule) -> None:
        iterations = min(schedule.rounds, schedule.total_rounds - block * schedule.rounds)
        order = range(self._count) if block % 2 == 0 else reversed(range(self._count))
        position = 0
        for variant in order:
            if variant in self._dropped:
                continue
            async with self._may_fail(variant):
                if variant not in self._processes:
                    await self._energy.end_turn()
                    await self.close()
                    await self._load(variant)
                await self._take_turn(variant, block, range(position, position + iterations))
                position += iterations

    async def _load(self, variant: int) -> None:
        measured = self.builder.measured[variant]
        process = self._processes[variant] = self.launch(variant)
        started_s = time.monotonic()
        try:
            await process.start()
            loaded = await process.load(lambda event: self.watcher.loading(process.name, event))
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
        if reason := setting_not_in_effect(measured.variant_config, loaded.stages):
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
        times = [await self._warm(variant, number) for number in range(max(self.limits.num_iters_warmup, 1))]
        self._next_number[variant] = max(self._next_number[variant], len(times))
        # The first iteration is not representative; of two, take the second.
        self._typical_s[variant] = statistics.median(times[1:] or times)
        self._longest_s = max(self._longest_s, self._typical_s[variant])

    async def _warm(self, variant: int, number: int) -> float:
        """Run an iteration before the first block; return its seconds."""
        ran = await self._one(variant, number, "warming up", None)
        self.builder.measured[variant].ran(number, ran)
        check_cancelled()
        return ran.busy_s

    async def _iterate(self, variant: int, block: int, position: int | None) -> None:
        """Run the next iteration; without a position, it is not counted."""
        number, began_s = self._next_number[variant], time.monotonic()
        limit_s = max(MIN_HANG_S, HANG_FACTOR * self._longest_s)
        await (self._energy.end_turn() if position is None else self._energy.begin(variant))
        ran = await self._one(variant, number, f"block {block}", limit_s)
        self._spans.ran(variant, began_s, time.monotonic())
        self._next_number[variant] = number + 1
        self._longest_s = max(self._longest_s, ran.busy_s)
        if position is None:
            self.builder.measured[variant].ran(number, ran)
        else:
            sample = self.builder.add_sample(variant, number, ran, block=block, position=position)
            self._energy.add(variant, sample, ran.used)
            self._check_mode_used(variant, sample)
        check_cancelled()

    async def _one(self, variant: int, number: int, when: str, limit_s: float | None) -> Ran:
        outputs = self.builder.output_file(variant, number)
        try:
            return await self._processes[variant].run(number, when=when, outputs=outputs, timeout_s=limit_s)
        except VariantError as error:
            self.builder.measured[variant].error = error.message
            raise
