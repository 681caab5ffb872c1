"""One run of `omni tune`: starts or continues a search, of settings or of a server's load, then reports."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from msgspec import Struct

from omni_cli.cli.bench.options import DEFAULT_INPUT_LEN
from omni_cli.cli.bench.run import BenchProgress
from omni_cli.cli.loadtest.reading import read_endpoint, read_traffics
from omni_cli.cli.options import reach, show_notes, write_report
from omni_cli.cli.terminal import console
from omni_cli.cli.terminal.stop_signals import run_until_stopped
from omni_cli.cli.tune.options import OBJECTIVES, TuneOptions
from omni_cli.config.schema import profile_data
from omni_cli.config.yaml_tree import to_yaml
from omni_cli.core.errors import ExitCode, InputError, OmniError, OutputError, UsageError
from omni_cli.core.files import cannot_write, check_writable
from omni_cli.measure.bench.benchmark import Plan
from omni_cli.measure.bench.environment import read_environment
from omni_cli.measure.bench.harness import State
from omni_cli.measure.bench.profile_source import ProfileSource
from omni_cli.measure.bench.schedule import RunLimits
from omni_cli.measure.bench.slo import parse_slos
from omni_cli.measure.bench.tuning import MAX_SETTINGS, OPTION, Space, TuneLimits, Tuning, expand_values
from omni_cli.measure.bench.variant_configs import VariantConfig
from omni_cli.measure.loadtest.plan import server_plan
from omni_cli.measure.loadtest.workload import ServerWorkload
from omni_cli.openai_api.client import parse_url
from omni_cli.records.record_file import utc_now, with_digest
from omni_cli.records.tune_record import Candidate, TuneRecord, load_tune_record
from omni_cli.report.renderers import to_text
from omni_cli.report.tune_view import tune_view
from omni_cli.report.units import count, seconds
from omni_cli.stats.race import Race, conclude
from omni_cli.stats.verdicts import ComparisonSpec

RECORD, PROFILE = "tune.json", "profile.yaml"
_DEFAULT_LOAD = "concurrency=1..16"
_REQUEST_TIMEOUT_S = 600.0
_ENDPOINTS = {"tokens_per_second": "chat", "images_per_second": "images"}
# Options of a profile's stages, which a running server does not take.
_OF_PROFILES = ("profile", "set_", "requests", "batch_size", "quality", "max_memory")


class SettingsSearch(Struct, frozen=True):
    """The settings to search, and what they are judged by. `plan` plans a batch; `profile` writes a setting as a
    profile, which the load of a server is not."""

    workload: dict[str, object]
    space: Space
    objective: str
    margin: float
    limits: TuneLimits
    plan: Callable[[Sequence[VariantConfig]], AbstractContextManager[Plan]]
    profile: Callable[[VariantConfig], str] | None = None
    url: str | None = None

    def record(self, command: tuple[str, ...]) -> TuneRecord:
        """The record of this search before its first round."""
        limits: dict[str, object] = {"quality": [str(limit) for limit in self.limits.quality]}
        if self.limits.max_memory_bytes is not None:
            limits["max_memory_bytes"] = self.limits.max_memory_bytes
        if self.url is not None:
            limits["url"] = self.url
        refused = self.space.refused
        return TuneRecord(
            created=utc_now(),
            command=command,
            environment=read_environment(),
            workload=self.workload,
            objective=self.objective,
            margin=self.margin,
            limits=limits,
            candidates=tuple(
                Candidate(name=item.name, settings=dict(item.settings), problem=refused.get(item.name))
                for item in self.space.variants
            ),
        )


def write_profile(source: ProfileSource, variant: VariantConfig) -> str:
    """Return the complete profile, checked by loading it; variables are named in a comment."""
    config = source.load(variant.overrides)
    lines = [f"# Written by omni tune: {variant.name}."]
    lines += [f"# Set in the environment: {name}={value}" for name, value in variant.environment.items()]
    return "\n".join(lines) + "\n" + to_yaml(profile_data(config))


def server_search(options: TuneOptions, margin: float) -> SettingsSearch:
    """A search over loads. Raises `UsageError`."""
    for name in _OF_PROFILES:
        if getattr(options, name) is not None:
            flag = "--" + name.strip("_").replace("_", "-") if name != "requests" else "REQUESTS.jsonl"
            raise UsageError(f"`{flag}` does not apply to a running server", hint="omit it, or omit `--url`")
    if options.stage != "all":
        raise UsageError("`--stage` does not apply to a running server", hint="omit it, or omit `--url`")
    url, seed = parse_url(options.url or ""), options.seed or 0
    texts = [expand_values(text) for text in options.search or [_DEFAULT_LOAD]]
    loads = {}
    for text in texts:
        for traffic in read_traffics([text], None, None, seed, option=OPTION):
            ((key, value),) = traffic.settings.items()
            loads[f"{key}={value}"] = traffic
    if len(loads) > MAX_SETTINGS:
        raise UsageError(f"these are {len(loads)} loads, and at most {MAX_SETTINGS} can be compared at once")
    endpoint = read_endpoint(options.endpoint or "chat", "text", options.output_len, ignore_eos=True)
    wanted = _ENDPOINTS.get(options.objective, endpoint.name)
    if endpoint.name != wanted:
        raise UsageError(
            f"answers of the endpoint `{endpoint.name}` have no `{options.objective}`",
            hint=f"add `--endpoint {wanted}`, or use another `--objective`",
        )
    workload = ServerWorkload(
        endpoint=endpoint,
        # A slow load would take minutes to send as many as a fast one.
        num_requests=None,
        input_len=options.input_len or DEFAULT_INPUT_LEN,
        output_len=options.output_len if endpoint.name == "chat" else None,
        seed=seed,
        load={},
        slos=parse_slos(tuple(options.slo or ()), endpoint.metrics),
    )
    reach([url], options)

    def plan(variants: Sequence[VariantConfig]) -> AbstractContextManager[Plan]:
        return server_plan(
            [url],
            [loads[variant.name] for variant in variants],
            workload,
            model=options.model,
            api_key=os.environ.get("OPENAI_API_KEY"),
            request_timeout_s=_REQUEST_TIMEOUT_S,
            command=(),
            is_varied=True,
        )

    settings = tuple(VariantConfig(name, settings=traffic.settings) for name, traffic in loads.items())
    has_slo = bool(workload.slos) and options.objective != "goodput"
    limits = TuneLimits(has_slo=has_slo, compares_outputs=False)  # each load has requests of its own
    described = workload.describe()
    return SettingsSearch(described, Space(settings, {}), OBJECTIVES[options.objective], margin, limits, plan, url=url)


def search(wanted: SettingsSearch, options: TuneOptions, command: tuple[str, ...]) -> ExitCode:
    """Search and report. Raises `OmniError` if nothing was measured."""
    folder = options.output_dir
    try:
        folder.mkdir(parents=True, exist_ok=True)
        check_writable(folder)
    except (OSError, ValueError) as error:
        raise cannot_write(folder, error) from error
    record = _continue_record(wanted.record(command), folder / RECORD)
    progress = TuneProgress(quiet=options.quiet, verbose=options.verbose)
    tuning = Tuning(
        wanted.space.variants,
        record,
        wanted.plan,
        limits=wanted.limits,
        iterations=RunLimits(options.num_iters, options.num_iters_warmup, None),
        time_budget_s=options.time_budget,
        watcher=progress,
        path=folder / RECORD,
    )
    work, stopped = asyncio.run(run_until_stopped(tuning.run(), options.timeout))
    progress.end()
    if stopped is None and (failure := work.exception()) is not None:
        raise failure
    return _report(wanted, tuning.record, options, stopped)


def _continue_record(record: TuneRecord, path: Path) -> TuneRecord:
    """Return the record in the folder if it is of the same search. Raises `OutputError` if it is of another one."""
    if not path.exists():
        return record
    try:
        earlier = load_tune_record(path)
    except InputError as error:
        raise OutputError(error.message, hint="remove it, or choose another folder with `--output-dir`") from error
    if earlier.fingerprint != record.fingerprint:
        raise OutputError(
            f"`{path}` is of another search, machine or version of the code",
            hint="choose another folder with `--output-dir`, or remove that file",
        )
    if earlier.rounds:
        console.print_note(
            f"continuing {path}: {count(earlier.starts, 'start')} in {seconds(earlier.elapsed_s)} so far"
        )
    return earlier


def _report(wanted: SettingsSearch, record: TuneRecord, options: TuneOptions, stopped: OmniError | None) -> ExitCode:
    path = options.output_dir / RECORD
    if stopped is not None:
        if not record.starts:
            raise stopped
        record = conclude(record)
        again = f"run the same command to continue; {path} has {count(record.starts, 'start')}"
        stopped.hint = again
    written = None
    if record.winner is not None and stopped is None and wanted.profile is not None:
        winner = next(item for item in wanted.space.variants if item.name == record.winner)
        written = options.output_dir / PROFILE
        write_report(written, wanted.profile(winner))
    view = tune_view(record)
    if options.as_json:
        console.print_json(with_digest(record))
    else:
        files = [str(file) for file in (written, path) if file is not None]
        console.print_text(to_text(view) + "\n\nWrote " + " and ".join(files))
    show_notes(view)
    failure = stopped or _failure(record)
    if failure is None:
        return ExitCode.OK
    console.print_note("")
    console.print_error(failure, verbose=options.verbose)
    return failure.exit_code


def _failure(record: TuneRecord) -> OmniError | None:
    if record.verdict == "decided":
        return None
    if record.verdict == "infeasible":
        first = next(item for item in record.candidates if item.problem is not None)
        return OmniError(f"no setting keeps the limits: `{first.name}`: {first.problem}", hint="widen the limits")
    return OmniError(
        "it is not shown that no other setting is better by more than the margin",
        hint="raise `--time-budget` or `--num-iters`, widen `--margin`, or use a quieter machine",
        exit_code=ExitCode.INCONCLUSIVE,
    )


class TuneProgress(BenchProgress):
    """Reports the phases of each batch as `omni bench` does; settings that cannot be the answer as they drop out."""

    def __init__(self, *, quiet: bool, verbose: bool) -> None:
        super().__init__(sys.stderr, ComparisonSpec(), quiet=quiet, verbose=verbose)
        self._quiet, self._leader = quiet, ""

    def batch_started(self, where: str, race: Race) -> None:
        batch = f"{where}, {count(len(race.rivals) + 1, 'setting')}"
        self._leader = f"so far the best: {race.leader}" if race.has_started else ""
        self._where = f"{batch}: "
        self._line.step(", ".join(filter(None, [batch, self._leader])))

    def on_refused(self, name: str, reason: str) -> None:
        self.hide()
        if not self._quiet:
            console.print_note(f"{name}: {reason}")

    def falling_back(self, reason: str) -> None:
        self._line.say(f"{self._where}loaded one after another: {reason}")

    def _format_estimate(self, _state: State) -> str:
        return self._leader
