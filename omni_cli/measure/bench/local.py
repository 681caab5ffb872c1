"""Variants on this machine, planned and checked before anything starts.

They are of a profile and run in separate processes, or the runs of any program: a command in the folder of a commit
that reports a duration.
"""

from __future__ import annotations

import math
import re
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from omni_cli.config.diagnostics import InvalidProfileError
from omni_cli.config.schema import EngineConfig
from omni_cli.core.errors import StageError, UsageError
from omni_cli.core.files import scratch_folder
from omni_cli.core.text import visible
from omni_cli.measure.bench.benchmark import Plan
from omni_cli.measure.bench.commits import checked_out, find_commit, last_line, run_program
from omni_cli.measure.bench.environment import read_environment
from omni_cli.measure.bench.profile_source import ProfileSource
from omni_cli.measure.bench.protocol import Load, Loaded, Loading, Ran
from omni_cli.measure.bench.record_builder import RecordBuilder
from omni_cli.measure.bench.variant_configs import VariantConfig, check_distinct, parse_vary
from omni_cli.measure.bench.variant_process import VariantError, VariantProcess
from omni_cli.measure.bench.workload import Workload
from omni_cli.records.record import workload_fingerprint

LAST_LINE, WALL_TIME, CPU_TIME, _JSON = "last-line", "wall-time", "cpu-time", "json:"
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_SHORTEST_S, _LONGEST_S = 1e-9, 1e9


@contextmanager
def local_plan(
    source: ProfileSource,
    workload: Workload,
    variants: tuple[VariantConfig, ...],
    *,
    against: str | None,
    command: tuple[str, ...],
    verbose: bool,
    keeps_outputs: bool = False,
    inputs: Path | None = None,
) -> Iterator[Plan]:
    """Plan these variants, or the only one `against` another commit. Raises `OmniError`.

    `inputs` is the file with the inputs of a stage in the middle of the chain, which several plans may share.
    """
    environment = read_environment()
    with ExitStack() as stack:
        if against is not None:
            repository, commit = find_commit(against)
            first, second = _two_commits(against, commit, environment["code"], variants[0])
            variants = (replace(first, code=stack.enter_context(checked_out(repository, commit))), second)
        folder = stack.enter_context(scratch_folder("omni-bench-"))
        builder = RecordBuilder(
            variants,
            command=command,
            environment=environment,
            workload=workload.describe(source.load()),
            folder=folder,
            keeps_outputs=keeps_outputs,
        )
        inputs_file = inputs or folder / "inputs"

        def launch(index: int) -> VariantProcess:
            shared = vars(source) | vars(workload) | {"overrides": (*source.overrides, *variants[index].overrides)}
            requests = None if workload.requests is None else str(workload.requests.path)
            own = {"inputs": str(inputs_file), "records_inputs": not inputs_file.exists(), "verbose": verbose}
            load = Load(**shared | own | {"requests": requests, "slo": dict(workload.slo)})
            return VariantProcess(variants[index], load, verbose=verbose)

        yield Plan(builder, launch)


def plan_variant_configs(
    vary: tuple[str, ...], config: EngineConfig, workload: Workload, source: ProfileSource
) -> tuple[VariantConfig, ...]:
    """Return the variants of `--vary`, or the profile unchanged, with checked configurations. Raises `OmniError`."""
    variants = parse_vary(vary, config, workload.stage) or (VariantConfig(config.name),)
    configs = [load_variant_config(source, variant) for variant in variants]
    check_distinct(variants, configs)
    for variant, varied in zip(variants, configs, strict=True):
        check_variant_config(variant, varied)
    return variants


def check_variant_config(variant: VariantConfig, config: EngineConfig) -> None:
    """Reject settings that the checkpoint does not fit or this machine cannot run. Raises `OmniError`."""
    from omni_cli.backends.execution.copies import why_not_async
    from omni_cli.checkpoints.resolve import find_folder
    from omni_cli.engine.checkpoint_fit import check_fit
    from omni_cli.engine.devices import check_devices, has_cuda_device

    folder = find_folder(config.model)
    if folder is not None:
        check_fit(config, folder)
    check_devices(config)
    for stage in () if has_cuda_device() else config.stages:
        if stage.output_copy == "async" and "output_copy" in variant.varied_keys(stage.name):
            raise StageError(f"variant `{variant.name}` cannot take effect: {why_not_async('cpu')}", stage=stage.name)


def _two_commits(
    ref: str, commit: str, code: Mapping[str, Any], variant: VariantConfig
) -> tuple[VariantConfig, VariantConfig]:
    """Return two variants: the other commit, which is the baseline, and this code."""
    mine = code.get("commit", "")[:12] + (" + changes" if code.get("dirty") else "")
    name = "this code" if mine.startswith(ref) else mine or "this code"
    return (
        replace(variant, name=ref, settings={**variant.settings, "code": commit}),
        replace(variant, name=name if name != ref else "this code", settings={**variant.settings, "code": mine}),
    )


def load_variant_config(source: ProfileSource, variant: VariantConfig, option: str = "--vary") -> EngineConfig:
    """Load a variant's configuration; errors in its settings name the option. Raises `InvalidProfileError`."""
    try:
        return source.load(variant.overrides)
    except InvalidProfileError as error:
        varied = {f"--set {text}" for text in variant.overrides}
        named = []
        for item in error.diagnostics:
            if item.location.source.label in varied:
                written = replace(item.location.source, label=f"{option} {variant.name}")
                item = replace(item, location=replace(item.location, source=written), order=len(error.diagnostics))
            named.append(item)
        # One option sets a key of several stages, and is one mistake.
        raise InvalidProfileError(dict.fromkeys(named)) from error


@dataclass(frozen=True)
class Program:
    """A shell command. `duration` names the place of its seconds: `last-line` of its output, `json:KEY` of it,
    `wall-time`, or `cpu-time`, the processor time of all its processes."""

    command: str
    duration: str = LAST_LINE

    def __post_init__(self) -> None:
        is_known = self.duration in (LAST_LINE, WALL_TIME, CPU_TIME) or (
            self.duration.startswith(_JSON) and len(self.duration) > len(_JSON)
        )
        if not is_known:
            message = f"invalid value for `--duration`: `{visible(self.duration, 80)}`"
            raise UsageError(message, hint=f"write `{LAST_LINE}`, `{_JSON}KEY`, `{WALL_TIME}` or `{CPU_TIME}`")
        if not self.command.strip():
            raise UsageError("`--command` is empty", hint="for example `--command 'python bench.py'`")

    def describe(self) -> dict[str, object]:
        """Return the record's `workload`."""
        described: dict[str, object] = {"kind": "command", "command": self.command, "duration": self.duration}
        return {**described, "fingerprint": workload_fingerprint(described)}

    def seconds(self, output: bytes, wall_s: float, cpu_s: float) -> float:
        """Return the duration of a run. Raises `ValueError` with a sentence."""
        if self.duration in (WALL_TIME, CPU_TIME):
            return wall_s if self.duration == WALL_TIME else max(cpu_s, _SHORTEST_S)
        line = last_line(output)
        value = float(line) if _NUMBER.fullmatch(line) else None
        value = value if self.duration == LAST_LINE else _at(_document(output), self.duration[len(_JSON) :])
        if value is None or not _SHORTEST_S <= value <= _LONGEST_S:
            where = "the last line of its output" if self.duration == LAST_LINE else f"`{self.duration}` of its output"
            raise ValueError(f"{where} is not a number of seconds; its last line is `{line}`")
        return value


@contextmanager
def program_plan(program: Program, variants: tuple[VariantConfig, ...], command: tuple[str, ...]) -> Iterator[Plan]:
    """Plan the runs of a program in the folders of these variants."""

    def launch(index: int) -> ProgramVariant:
        variant = variants[index]
        assert variant.code is not None  # the folder of a commit
        return ProgramVariant(variant.name, program, variant.code)

    with scratch_folder("omni-bench-") as folder:
        yield Plan(
            RecordBuilder(
                variants,
                command=command,
                environment=read_environment(),
                workload=program.describe(),
                folder=folder,
            ),
            launch,
        )


@dataclass
class ProgramVariant:
    """Runs the program in a folder, once per iteration."""

    name: str
    program: Program
    folder: Path
    pid: None = None

    async def start(self) -> None:
        """Start nothing: each iteration is a process of its own."""

    async def load(self, _on_loading: Callable[[Loading], None]) -> Loaded:
        return Loaded(())

    async def run(self, number: int, *, when: str, outputs: Path | None = None, timeout_s: float | None = None) -> Ran:
        """Run the program. Raises `VariantError` if it fails, hangs, or reports no duration."""
        began_s, began_cpu_s = time.perf_counter(), _children_s()
        try:
            code, out, err = await run_program(self.program.command, self.folder, timeout_s)
        except TimeoutError as error:
            raise VariantError(
                f"{self.name}: the program is considered hung ({when}): no end within {timeout_s:.0f} s"
            ) from error
        wall_s = time.perf_counter() - began_s
        if code:
            raise VariantError(f"{self.name}: the program ended with {code} ({when}): {last_line(err, out)}")
        try:
            seconds = self.program.seconds(out, wall_s, _children_s() - began_cpu_s)
        except ValueError as error:
            raise VariantError(f"{self.name}: {error}", hint="see `--duration` for other places") from error
        return Ran(e2e_s=seconds, metrics={}, work={}, output_sha256=None, accounted={}, memory={}, lasted_s=wall_s)

    async def close(self) -> None:
        """Close nothing: a process that was cancelled has been killed."""


def _children_s() -> float:
    """Return the processor time of all processes that have been started and have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _document(output: bytes) -> Any:
    """Return the output as JSON, else its last line; None if neither is."""
    for text in (output, output.strip().rpartition(b"\n")[2]):
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
    return None


def _at(document: Any, path: str) -> float | None:
    """Return the number at a path such as `stats.mean` or `runs.0`; None if there is none."""
    for part in path.split("."):
        if isinstance(document, dict):
            document = document.get(part)
        elif isinstance(document, list) and part.isdecimal() and int(part) < len(document):
            document = document[int(part)]
        else:
            return None
    is_number = isinstance(document, int | float) and not isinstance(document, bool) and math.isfinite(document)
    return float(document) if is_number else None
