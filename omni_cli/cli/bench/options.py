"""The options of `omni bench`, and those that it shares with `omni loadtest` and `omni profile`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from omni_cli.cli.options import (
    GateOptions,
    MaxMemoryRegressionOption,
    ProfileOptions,
    TimeoutOption,
    argument,
    check_output_files,
    option,
    seconds_option,
    shared_option,
)
from omni_cli.cli.profile_choice import profile_source
from omni_cli.cli.terminal import console
from omni_cli.config.bundled import bundled_profiles
from omni_cli.core.errors import UsageError

if TYPE_CHECKING:
    from omni_cli.config.schema import EngineConfig
    from omni_cli.measure.bench.profile_source import ProfileSource
    from omni_cli.measure.bench.workload import Workload

DEFAULT_BUDGET_S = 60.0
MAX_BATCH_SIZE = 4096
MAX_LEN = 2**20

DEFAULT_BATCH_SIZE, DEFAULT_INPUT_LEN = 1, 32

StageOption = Annotated[
    str, shared_option("--stage NAME|ar|diffusion|all", "The stages to measure: one, all of a kind, or end to end.")
]


@dataclass(frozen=True, kw_only=True)
class WorkloadOptions(ProfileOptions):
    """The requests of an iteration, and the lengths of their outputs."""

    batch_size: int | None = option(
        "--batch-size N",
        f"Requests per iteration, sent together. Default: {DEFAULT_BATCH_SIZE}.",
        min=1,
        max=MAX_BATCH_SIZE,
    )
    input_len: int | None = option(
        "--input-len N", f"Tokens per prompt. Default: {DEFAULT_INPUT_LEN}.", min=1, max=MAX_LEN
    )
    output_len: int = option(
        "--output-len N", "Tokens that every AR stage generates, no fewer.", default=32, min=1, max=MAX_LEN
    )
    requests: Path | None = argument(
        "[REQUESTS.jsonl]",
        "Requests to send instead of generated prompts, with their media: all of them together in each iteration. "
        "The lines are those of `omni generate --requests`.",
        default=None,
    )

    def read(self, stage: str) -> tuple[ProfileSource, EngineConfig, Workload]:
        """Return the profile with its source, and the requested work of the stages that `stage` names.

        Raises `OmniError` for a wrong option, profile or file, before anything is loaded.
        """
        from omni_cli.measure.bench.workload import lengths_given_by, measured_stages

        source = profile_source(self)
        config = source.load()
        measured_stages(config, stage)
        return source, config, replace(self._workload(stage, config), given_lengths=lengths_given_by(source.overrides))

    def _workload(self, stage: str, config: EngineConfig) -> Workload:
        from omni_cli.measure.bench.workload import Workload, describe_requests

        if self.requests is None:
            batch_size, input_len = self.batch_size or DEFAULT_BATCH_SIZE, self.input_len or DEFAULT_INPUT_LEN
            return Workload(stage, batch_size, input_len, self.output_len)
        for flag, value in (("--batch-size", self.batch_size), ("--input-len", self.input_len)):
            if value is not None:
                raise UsageError(f"`{flag}` and a file of requests exclude each other", hint="remove one of them")
        if str(self.requests) in bundled_profiles() and not self.requests.exists():
            raise UsageError(f"no requests file `{self.requests}`", hint=f"did you mean `--profile {self.requests}`?")
        file = describe_requests(self.requests, config, console.print_warning)
        return Workload(stage, file.num_requests, output_len=self.output_len, requests=file)


@dataclass(frozen=True, kw_only=True)
class MeasureOptions(GateOptions):
    """Limits of a measurement, and the formats of its results."""

    baseline: Path | None = option("--baseline FILE", "Compare with a saved record of the same machine and workload.")
    num_iters: int | None = option(
        "--num-iters N",
        "Iterations, or windows of a server, per variant. Default: until the verdict is reached.",
        min=1,
    )
    num_iters_warmup: int = option(
        "--num-iters-warmup N", "Warm-up iterations or windows, not counted; at least 1 is run.", default=3, min=0
    )
    time_budget: float | None = seconds_option(
        "--time-budget SECONDS", "Time for measuring, without loading. Default: 60 per comparison."
    )
    output_json: Path | None = option(
        "--output-json FILE", "Save the record with all samples, again after every block."
    )
    timeout: TimeoutOption = None

    def check_files(self) -> None:
        """Raise `OutputError` before measuring if a file could not be written."""
        check_output_files(self.output_json, self.junit, self.markdown)

    def budget_s(self, num_variants: int) -> float | None:
        """Return the seconds for measuring; None if only a number of iterations was given."""
        if self.time_budget is not None or self.num_iters is not None:
            return self.time_budget
        return DEFAULT_BUDGET_S * max(num_variants - 1, 1)


@dataclass(frozen=True, kw_only=True)
class BenchOptions(MeasureOptions, WorkloadOptions):
    """The options of `omni bench`."""

    takes_weights = True

    stage: StageOption = "all"
    vary: list[str] | None = option(
        "--vary KEY=A,B",
        "Compare values of a profile key, or of an environment variable as `env.NAME`. The first value is the "
        "baseline of the others. Repeatable.",
    )
    against: str | None = option("--against GIT_REF", "Compare this code with that of another commit, interleaved.")
    max_memory_regression: MaxMemoryRegressionOption = None
