"""Conduct a search for the fastest setting: batches of interleaved variants, until the race over them is decided.

The settings are those of `--search KEY=A,B` or `KEY=1..16`, or of a space that suits the measured stages.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from omni_cli.config.diagnostics import InvalidProfileError
from omni_cli.config.gate_limits import GateLimits, QualityLimit
from omni_cli.config.schema import EngineConfig
from omni_cli.core.errors import OmniError, UsageError
from omni_cli.core.text import visible
from omni_cli.measure.bench.benchmark import Plan
from omni_cli.measure.bench.harness import Harness, Watcher
from omni_cli.measure.bench.local import check_variant_config, load_variant_config
from omni_cli.measure.bench.profile_source import ProfileSource
from omni_cli.measure.bench.schedule import RunLimits
from omni_cli.measure.bench.variant_configs import VariantConfig, parse_vary
from omni_cli.measure.bench.workload import Workload, measured_stages
from omni_cli.records.metrics import ATTAINMENT
from omni_cli.records.record import Variant
from omni_cli.records.record_file import save_record
from omni_cli.records.results import Comparison, Outputs
from omni_cli.records.tune_record import Candidate, Round, TuneRecord
from omni_cli.stats.blocks import get_values, metric_names
from omni_cli.stats.gate import judge
from omni_cli.stats.race import Race, batch_costs, conclude, get_race, peak_bytes

MIN_ATTAINMENT = 0.99
"""Share of its requests that must meet the limits of `--slo`."""

OPTION = "--search"
MAX_SETTINGS = 64
MAX_TOGETHER = 8
"""Settings that run side by side; more would disturb each other, and the result would be about their crowd."""

AS_IT_IS = "profile as it is"
_MAX_WHOLE_NUMBERS = 8
_STEPS = 5
_RANGE = re.compile(r"([^=]+)=\s*(-?[0-9.]+?)\s*\.\.\s*(-?[0-9.]+)\s*")


@dataclass(frozen=True)
class TuneLimits:
    """Limits on a setting; one that misses any cannot be the answer. `has_slo`: good requests are counted, and are not
    the objective. `compares_outputs`: settings get the same requests, so that their outputs can be compared."""

    max_memory_bytes: int | None = None
    quality: tuple[QualityLimit, ...] = ()
    has_slo: bool = False
    compares_outputs: bool = True


class TuneWatcher(Watcher, Protocol):
    """Receives the events of a search, and those of each batch."""

    def batch_started(self, where: str, race: Race) -> None: ...

    def on_refused(self, name: str, reason: str) -> None: ...


@dataclass
class Tuning:
    """One search. The record is complete after each batch and saved to `path`; a record with rounds is continued."""

    variants: Sequence[VariantConfig]
    record: TuneRecord
    plan: Callable[[Sequence[VariantConfig]], AbstractContextManager[Plan]]
    _: KW_ONLY
    limits: TuneLimits
    iterations: RunLimits
    time_budget_s: float | None
    watcher: TuneWatcher
    path: Path

    def __post_init__(self) -> None:
        self._variant_configs = {variant.name: variant for variant in self.variants}
        self._reference = self.variants[0].name

    async def run(self) -> None:
        """Search until the answer is known, the time is up, or no setting is left. Raises `OmniError`."""
        while await self.advance():
            pass

    async def advance(self) -> bool:
        """Run the next round; return False if the search has ended. Raises `OmniError`."""
        race = get_race(self.record)
        is_late = self.time_budget_s is not None and self.record.elapsed_s >= self.time_budget_s
        if race.is_decided or race.is_exhausted or is_late:
            self._keep(conclude(self.record, stopped=True))
            return False
        await self._round(race)
        return True

    async def _round(self, race: Race) -> None:
        control = race.leader
        assert control is not None  # the race is not exhausted
        number = len(self.record.rounds)
        shuffled = random.Random(number)
        groups = list(get_groups(race, shuffled))
        for batch, group in enumerate(groups, 1):
            of = f", batch {batch} of {len(groups)}" if len(groups) > 1 else ""
            self.watcher.batch_started(f"round {number + 1}{of}", race)
            # A setting that failed earlier in this round is not a candidate.
            lead = [control] if self._candidate(control).problem is None else []
            names = [*lead, *group]
            is_first = any(self._candidate(name).outputs is None for name in group)
            if is_first and self.limits.compares_outputs and (self.limits.quality or self._reference in names):
                names = [self._reference, *(name for name in names if name != self._reference)]
            else:
                # Every setting appears equally often at every position.
                shuffled.shuffle(names)
            if names:
                await self._batch(names, number, control)

    async def _batch(self, names: list[str], number: int, control: str) -> None:
        started_s = time.monotonic()
        with ExitStack() as stack:
            # In a thread, because planning asks a server for its models.
            wanted = self.plan([self._variant_configs[name] for name in names])
            plan = await asyncio.to_thread(stack.enter_context, wanted)
            await Harness(
                plan.builder,
                launch=plan.launch,
                limits=self.iterations,
                decided=lambda _: False,
                watcher=self.watcher,
                drops_failed=True,
            ).run()
            plan.builder.check()
            record = plan.builder.record()
        is_compared = self.limits.compares_outputs and names[0] == self._reference
        compared = {item.b: item for item in record.comparisons} if is_compared else {}
        self._check_objective(record.variants)
        kept = tuple(self._slim(variant) for variant in record.variants)
        rounds = self.record.rounds
        earlier = rounds[number].batches if number < len(rounds) else ()
        self.record = msgspec.structs.replace(
            self.record,
            rounds=(*rounds[:number], Round(control=control, batches=(*earlier, kept))),
            elapsed_s=self.record.elapsed_s + time.monotonic() - started_s,
        )
        self._judge(record.variants, kept, compared)

    def _judge(self, variants: Sequence[Variant], kept: Sequence[Variant], compared: dict[str, Comparison]) -> None:
        """Note which settings of a batch cannot be the answer, and save the record."""
        finished = batch_costs(kept, self.record.objective)
        for variant in variants:
            outputs = compared[variant.name].outputs if variant.name in compared else None
            problem = variant.error or self._find_violation(variant, outputs)
            if problem is None and variant.name not in finished:
                problem = "none of its requests met the limits of `--slo`"
            self._update(variant.name, outputs, problem)
        self._keep(conclude(self.record))

    def _find_violation(self, variant: Variant, outputs: Outputs | None) -> str | None:
        """Return a sentence on the first limit that a setting missed in this batch."""
        peak, most = peak_bytes(variant), self.limits.max_memory_bytes
        if most is not None and peak is not None and peak > most:
            return f"its peak memory was {peak / 2**20:.0f} MiB, the limit is {most / 2**20:.0f} MiB"
        attained = [value for _, value in get_values(variant, ATTAINMENT)]
        if self.limits.has_slo and attained and sum(attained) / len(attained) < MIN_ATTAINMENT:
            share = sum(attained) / len(attained)
            return f"{share:.1%} of its requests met the limits of `--slo`, and {MIN_ATTAINMENT:.0%} have to"
        if self.limits.quality and outputs is not None:
            limits = GateLimits({}, quality=self.limits.quality)
            gate = judge(limits, [], [], {(self._reference, variant.name): outputs})
            return "; ".join(gate.reasons) or None
        return None

    def _update(self, name: str, outputs: Outputs | None, problem: str | None) -> None:
        """Note what a batch showed of a setting."""
        if problem is not None:
            self.watcher.on_refused(name, problem)
            if name == self._reference and self.limits.quality:
                raise OmniError(f"`--quality` compares with `{name}`, which cannot run: {problem}")
        self.record = msgspec.structs.replace(
            self.record,
            candidates=tuple(
                msgspec.structs.replace(item, outputs=outputs or item.outputs, problem=item.problem or problem)
                if item.name == name
                else item
                for item in self.record.candidates
            ),
        )

    def _check_objective(self, variants: Sequence[Variant]) -> None:
        """Raise `UsageError` if this workload does not have the objective."""
        ran = [variant for variant in variants if variant.samples and variant.error is None]
        names = metric_names(ran[0]) if ran else (self.record.objective,)
        if self.record.objective not in names:
            raise UsageError(
                f"these requests have no `{self.record.objective}`, so that it cannot be the objective",
                hint=f"use another `--objective`; measured are {', '.join(names)}",
            )

    def _slim(self, variant: Variant) -> Variant:
        """Return a variant without what standings do not need."""
        kept = (self.record.objective, ATTAINMENT)
        samples = tuple(
            msgspec.structs.replace(
                sample,
                metrics={name: sample.metrics[name] for name in kept if name in sample.metrics},
                execution_counters={},
                requests={},
                failures={},
            )
            for sample in variant.samples
        )
        memory = msgspec.structs.replace(variant.memory, stages={})
        noted = {name: value for name, value in variant.effective.items() if name == "notes"}
        return msgspec.structs.replace(variant, settings={}, effective=noted, samples=samples, memory=memory)

    def _candidate(self, name: str) -> Candidate:
        return next(item for item in self.record.candidates if item.name == name)

    def _keep(self, record: TuneRecord) -> None:
        self.record = record
        save_record(record, self.path)


@dataclass(frozen=True)
class Space:
    """The settings, the profile as it is first, and the reasons why some of them cannot be tried."""

    variants: tuple[VariantConfig, ...]
    refused: dict[str, str]


def plan_space(
    searches: Sequence[str], config: EngineConfig, workload: Workload, source: ProfileSource, cores: int
) -> Space:
    """Return the settings to try. Raises `OmniError` for a key or a value that no setting may have."""
    texts = [expand_values(text) for text in searches] or default_space(config, workload, cores)
    variants = list(parse_vary(texts, config, workload.stage, option=OPTION, at_most=MAX_SETTINGS))
    for text in texts:
        # One key at a time, so that an invalid value is an error, and an impossible combination only a refusal.
        for variant in parse_vary([text], config, workload.stage, option=OPTION, at_most=MAX_SETTINGS):
            load_variant_config(source, variant, OPTION)
    kept: list[VariantConfig] = []
    refused: dict[str, str] = {}
    seen: list[tuple[EngineConfig, dict[str, str]]] = [(config, {})]
    first = VariantConfig(AS_IT_IS)
    for variant in variants:
        try:
            varied = load_variant_config(source, variant, OPTION)
            check_variant_config(variant, varied)
        except OmniError as error:
            kept.append(variant)
            mistakes = error.diagnostics if isinstance(error, InvalidProfileError) else (error,)
            refused[variant.name] = "; ".join(dict.fromkeys(item.message for item in mistakes))
            continue
        same = (varied, dict(variant.environment))
        if same == seen[0] and first.name == AS_IT_IS:
            # The profile has this setting already, so the profile is listed under the setting's name.
            first = variant
        elif same not in seen:
            seen.append(same)
            kept.append(variant)
    return Space((first, *kept), refused)


def expand_values(text: str) -> str:
    """Expand `KEY=1..16`: up to eight whole numbers are all tried, more are doubled from the first, and fractions are
    five evenly spaced values. Returns any other text unchanged. Raises `UsageError`."""
    match = _RANGE.fullmatch(text)
    if match is None:
        return text
    try:
        whole = match[2].lstrip("-").isdigit() and match[3].lstrip("-").isdigit()
        low, high = (int(part) if whole else float(part) for part in match.groups()[1:])
    except ValueError:
        return text
    if not low < high:
        raise UsageError(f"`{OPTION} {visible(text, 80)}` is not a range: write the smaller number first")
    return f"{match[1]}={','.join(f'{value:g}' for value in _values(low, high, whole=whole))}"


def _values(low: float, high: float, *, whole: bool) -> list[float]:
    if whole and high - low < _MAX_WHOLE_NUMBERS:
        return [low + step for step in range(int(high - low) + 1)]
    if not whole or low < 1:
        return [low + (high - low) * step / (_STEPS - 1) for step in range(_STEPS)]
    values = [low]
    while values[-1] * 2 < high:
        values.append(values[-1] * 2)
    return [*values, high]


def default_space(config: EngineConfig, workload: Workload, cores: int) -> list[str]:
    """Return the keys that change the speed of these stages on this machine and leave their outputs as they are."""
    from omni_cli.engine.devices import has_cuda_device

    kinds = {stage.kind for stage in measured_stages(config, workload.stage)}
    cuda = has_cuda_device()
    space = []
    if "diffusion" in kinds:
        space.append("execution=eager,compile" + (",cudagraph" if cuda else ""))
    if "ar" in kinds and cuda:
        space.append("cudagraph_mode=none,piecewise,full_and_piecewise")
    if workload.batch_size > 1:
        space.append(expand_values(f"max_num_seqs=1..{workload.batch_size}"))
    if not cuda and cores > 1:
        space.append(expand_values(f"env.OMP_NUM_THREADS=1..{cores}"))
    if not space:
        raise UsageError("there is no default space for this stage", hint=f"name one: `{OPTION} KEY=A,B`")
    return space


def get_groups(race: Race, shuffled: random.Random) -> Iterator[list[str]]:
    """Yield the rivals of the leader in groups that run side by side with it, of about equal size, in random order."""
    pending = list(race.rivals)
    shuffled.shuffle(pending)
    count = max(1, -(-len(pending) // (MAX_TOGETHER - 1)))
    for number in range(count):
        yield pending[number::count]
