"""The measurements so far, as a record that is valid at any time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import KW_ONLY, asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from omni_cli.backends.execution.counters import since
from omni_cli.measure.bench.checks import find_unaccounted_time, ineffective
from omni_cli.measure.bench.iteration import median_share
from omni_cli.measure.bench.outputs import kept_outputs, load_arrays
from omni_cli.measure.bench.protocol import LoadedStage, Ran, StagePeaks
from omni_cli.measure.bench.quality import measure_pairs
from omni_cli.measure.bench.variant_configs import VariantConfig
from omni_cli.records.metrics import ALLOCATED, E2E, HOST_RSS, RESERVED
from omni_cli.records.record import (
    COUNTERS_KEY,
    DeviceLoad,
    Energy,
    KeptOutput,
    Memory,
    Record,
    Sample,
    StoppingPlan,
    Utilisation,
    Variant,
)
from omni_cli.records.record_file import utc_now
from omni_cli.records.results import Comparison, Outputs
from omni_cli.stats.estimate import MIN_BLOCKS
from omni_cli.stats.output_quality import is_identical, max_abs_difference, outputs_quality, request_qualities

MAX_OUTPUT_FILES = MIN_BLOCKS
"""Number of first iterations whose outputs are kept and compared; later ones are compared by hash. Each has its own
prompts and seeds, so that there are as many as an interval needs."""


@dataclass
class Measured:
    """The results of one variant; `notes` are sentences on what its stages changed about requests."""

    variant_config: VariantConfig
    stages: tuple[LoadedStage, ...] = ()
    samples: list[Sample] = field(default_factory=list)
    hashes: dict[int, str] = field(default_factory=dict)
    accounted: dict[str, list[float]] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)
    execution_counters: dict[str, dict[str, float]] = field(default_factory=dict)
    server: dict[str, Any] = field(default_factory=dict)
    device_load: tuple[DeviceLoad, ...] = ()
    energy: Energy | None = None
    error: str | None = None
    notes: dict[str, None] = field(default_factory=dict)

    def add_stages(self, stages: tuple[LoadedStage, ...]) -> None:
        """Note the loaded stages; a variant may be loaded more than once."""
        self.stages = stages
        self.execution_counters = {stage.name: stage.execution_counters for stage in stages}

    def ran(self, number: int, ran: Ran) -> dict[str, dict[str, float]]:
        """Note the iteration that has just ended; return the counts of each stage in it."""
        if ran.output_sha256 is not None:
            self.hashes.setdefault(number, ran.output_sha256)
        self.notes |= dict.fromkeys(ran.notes)
        before, self.execution_counters = self.execution_counters, ran.execution_counters
        return {name: since(before.get(name, {}), counters) for name, counters in ran.execution_counters.items()}

    def effective(self) -> dict[str, Any]:
        """Return the engines' settings where they differ from those requested, the share of the times that their parts
        add up to, the counters since the last loading, and the notes, if there are any."""
        if not self.stages:
            # What is observed of a server is added to while a record is written.
            return {"server": deepcopy(self.server)} if self.server else {}
        return {
            "stages": {stage.name: {**stage.settings, **stage.effective} for stage in self.stages},
            "load_s": {stage.name: stage.load_s for stage in self.stages},
            "not_as_requested": [asdict(item) for item in ineffective(self.stages)],
            COUNTERS_KEY: self.execution_counters,
            "accounted": {kind: median_share(shares) for kind, shares in self.accounted.items()},
            **({"notes": list(self.notes)} if self.notes else {}),
        }

    def to_variant(self, outputs: tuple[KeptOutput, ...] = ()) -> Variant:
        return Variant(
            name=self.variant_config.name,
            settings=dict(self.variant_config.settings),
            effective=self.effective(),
            samples=tuple(self.samples),
            memory=self.memory,
            energy=self.energy,
            output_sha256=self.hashes.get(0),
            outputs=outputs,
            device_load=self.device_load,
            error=self.error,
        )


@dataclass
class RecordBuilder:
    """Collects the results of variants, which write the outputs of their first iterations to `folder`."""

    variant_configs: Sequence[VariantConfig]
    _: KW_ONLY
    command: Sequence[str]
    environment: dict[str, Any]
    workload: dict[str, Any]
    folder: Path
    keeps_outputs: bool = False

    def __post_init__(self) -> None:
        self.measured = [Measured(variant_config) for variant_config in self.variant_configs]
        self.sampling = StoppingPlan()
        self.utilisation: Utilisation | None = None
        self._created = utc_now()
        self._kept: dict[int, tuple[KeptOutput, ...]] = {}
        self._differences: dict[tuple[int, int], tuple[float | None, Sequence[Mapping[str, float]]]] = {}

    @property
    def has_samples(self) -> bool:
        return any(measured.samples for measured in self.measured)

    def note(self, **conditions: Any) -> None:
        """Add to the conditions of the measurement."""
        self.environment = {
            **self.environment,
            "conditions": {**self.environment.get("conditions", {}), **conditions},
        }

    def loaded_again(self, block: int) -> None:
        """Note that the variants were loaded in the other order before this block."""
        self.sampling = msgspec.structs.replace(self.sampling, reversed_from=block)
        self.note(loading_orders=2)

    def output_file(self, variant: int, number: int) -> Path | None:
        """Return the file for the outputs of iteration `number`; None for those that are only hashed."""
        return self.folder / f"{variant}-{number}.npz" if number < MAX_OUTPUT_FILES else None

    def add_sample(self, variant: int, number: int, ran: Ran, *, block: int, position: int) -> Sample:
        measured = self.measured[variant]
        sample = Sample(
            block=block, position=position, number=number, e2e_s=ran.e2e_s, metrics=ran.metrics, work=ran.work,
            execution_counters=measured.ran(number, ran), requests=ran.requests, failures=ran.failures,
            unanswered_s=UNSET if ran.unanswered_s is None else ran.unanswered_s,
        )  # fmt: skip
        measured.samples.append(sample)
        for kind, share in ran.accounted.items():
            measured.accounted.setdefault(kind, []).append(share)
        measured.memory = get_memory(ran.memory)
        return sample

    def check(self) -> None:
        """Mark a variant as failed if requests failed or the parts of its times do not add up."""
        for measured in self.measured:
            measured.error = measured.to_variant().failure or find_unaccounted_time(measured.accounted)

    def record(self) -> Record:
        """Return the record so far, without summaries and verdicts, but with the comparison of the outputs."""
        return Record(
            created=self._created,
            command=tuple(self.command),
            environment=self.environment,
            workload=self.workload,
            variants=tuple(
                measured.to_variant(self._kept_outputs(index)) for index, measured in enumerate(self.measured)
            ),
            sampling=self.sampling,
            utilisation=self.utilisation,
            comparisons=tuple(self._outputs(b) for b in range(1, len(self.measured))),
        )

    def _outputs(self, b: int) -> Comparison:
        """Compare the outputs of a variant with those of the first one."""
        first, other = self.measured[0], self.measured[b]
        numbers = sorted(first.hashes.keys() & other.hashes.keys())
        equal = {is_identical(first.hashes[n], other.hashes[n]) for n in numbers}
        # One window that differs decides; a window without outputs does not.
        identical = False if False in equal else True if True in equal else None
        difference = 0.0 if identical else None
        quality: dict[str, Any] = {}
        if identical is False:
            differences = [self._difference(b, n) for n in numbers if n < MAX_OUTPUT_FILES]
            known = [value for value, _ in differences if value is not None]
            # 0 would claim equality, although later outputs, of which only hashes are left, differ.
            difference = max(known) if len(known) == len(differences) and any(known) else None
            requests = [measures for _, several in differences for measures in several]
            quality = outputs_quality(requests)
        outputs = Outputs(identical, difference, **quality)
        return Comparison(metric=E2E, a=first.variant_config.name, b=other.variant_config.name, outputs=outputs)

    def _difference(self, variant: int, number: int) -> tuple[float | None, Sequence[Mapping[str, float]]]:
        """Return the largest difference and each request's measures of one iteration's outputs."""
        if (variant, number) not in self._differences:
            mine, other = self._load_outputs(0, number), self._load_outputs(variant, number)
            if mine is None or other is None:
                return None, ()
            self._differences[variant, number] = max_abs_difference(mine, other), request_qualities(mine, other)
        return self._differences[variant, number]

    def add_model_based(self, weights: Mapping[str, Path]) -> None:
        """Add the measures of models to those of outputs that differ. Raises `QualityWeightsError`.

        Call it once, after the last iteration: the models take the machine's time.
        """
        self.note(quality_weights={name: str(folder) for name, folder in weights.items()})
        self.record()  # compares what was not compared yet
        keys = [key for key, (_, requests) in self._differences.items() if requests]
        pairs = [(self.folder / f"0-{number}.npz", self.folder / f"{variant}-{number}.npz") for variant, number in keys]
        for key, measures in zip(keys, measure_pairs(weights, pairs) if pairs else (), strict=True):
            difference, known = self._differences[key]
            self._differences[key] = difference, [{**a, **b} for a, b in zip(known, measures, strict=True)]

    def _load_outputs(self, variant: int, number: int) -> dict[str, Any] | None:
        path = self.output_file(variant, number)
        return None if path is None else load_arrays(path)

    def _kept_outputs(self, variant: int) -> tuple[KeptOutput, ...]:
        """Encode the outputs of the first iteration once."""
        if self.keeps_outputs and variant not in self._kept:
            mine, first = self._load_outputs(variant, 0), self._load_outputs(0, 0) if variant else None
            if mine is not None:
                self._kept[variant] = kept_outputs(mine, first)
        return self._kept.get(variant, ())


def get_memory(stages: Mapping[str, StagePeaks]) -> Memory:
    """Return the record's `memory`: sums over the stages of their peaks while running; peaks of loading only per stage.

    Stages have separate processes and need not peak at the same time, so the sum is an upper bound.
    """
    run = [stage.run or stage.load for stage in stages.values()]
    keys = {ALLOCATED: "device", RESERVED: "reserved", HOST_RSS: "host"}
    total = {metric: sum(peaks.get(key, 0) for peaks in run) or None for metric, key in keys.items()}
    by_stage = {
        name: {
            phase: {metric: peaks.get(key) for metric, key in keys.items()}
            for phase, peaks in (("load", stage.load), ("run", stage.run))
            if peaks
        }
        for name, stage in stages.items()
    }
    return Memory(**total, stages=by_stage)
