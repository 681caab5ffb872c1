"""One run of `omni profile`: records, writes the files and prints the findings."""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from omni_cli.cli.artifacts import ArtifactWriter, folder_if_used
from omni_cli.cli.terminal import console
from omni_cli.cli.terminal.live_display import LiveLine
from omni_cli.cli.terminal.progress import say_loading
from omni_cli.cli.terminal.stop_signals import run_until_stopped
from omni_cli.core.errors import ExitCode
from omni_cli.core.files import cannot_write, scratch_folder, write_whole
from omni_cli.measure.bench.environment import read_environment
from omni_cli.measure.profiling.build import build_profile, read_traces
from omni_cli.measure.profiling.chrome_trace import merged_trace
from omni_cli.measure.profiling.session import ProfilingRun, RecordedSession
from omni_cli.records.profile_record import Profile
from omni_cli.records.record_file import save_record, with_digest
from omni_cli.report.profile_view import profile_view
from omni_cli.report.renderers import to_text
from omni_cli.report.units import seconds

if TYPE_CHECKING:
    from omni_cli.cli.profile.options import ProfilingOptions
    from omni_cli.config.schema import EngineConfig
    from omni_cli.measure.bench.workload import Workload

TRACE_NAME = "trace.json.gz"
RECORD_NAME = "profile.json"


def run_profile(
    config: EngineConfig, workload: Workload, options: ProfilingOptions, *, command: tuple[str, ...]
) -> ExitCode:
    """Record and report. Raises `OmniError` if the run ends early, and leaves no files then."""
    began_s = time.monotonic()
    output_dir = options.output_dir if options.overwrite else free_folder(options.output_dir)
    ArtifactWriter(output_dir, ()).prepare()
    environment = read_environment()
    line = LiveLine(sys.stderr, quiet=options.quiet, verbose=options.verbose)
    try:
        with _working_folder(output_dir) as folder:
            run = ProfilingRun(
                config,
                workload,
                num_iters=options.num_iters,
                num_iters_warmup=options.num_iters_warmup,
                folder=folder,
                on_event=partial(say_loading, say=line.step),
                on_progress=line.say,
                verbose=options.verbose,
            )
            work, stopped = asyncio.run(run_until_stopped(run.run(), options.timeout))
            if stopped is not None:
                raise stopped
            session = work.result()
            line.say("reading the traces")
            about = {"command": command, "environment": environment, "workload": workload.describe(config)}
            profile = _write(session, config, about | {"num_iters_warmup": run.num_iters_warmup}, output_dir)
    finally:
        line.end()
    if options.as_json:
        console.print_json(with_digest(profile))
    else:
        console.print_text(to_text(profile_view(profile)))
        console.print_text("")
        files, took = f"{output_dir / TRACE_NAME}, {output_dir / RECORD_NAME}", seconds(time.monotonic() - began_s)
        console.print_text(f"Saved {files} after {took}; https://ui.perfetto.dev opens the trace")
    for note in profile.notes:
        console.print_warning(note)
    return ExitCode.OK


def free_folder(folder: Path) -> Path:
    """Return a folder, or one beside it with a number, without a profile of an earlier run."""
    numbered = (folder.with_name(f"{folder.name}-{number}") for number in itertools.count(2))
    folders = itertools.chain([folder], numbered)
    return next(path for path in folders if not any((path / name).exists() for name in (TRACE_NAME, RECORD_NAME)))


@contextmanager
def _working_folder(output_dir: Path) -> Iterator[Path]:
    """A temporary folder for the stages' files, on the disk of the results."""
    try:
        with folder_if_used(output_dir), scratch_folder(".omni-profile-", output_dir) as folder:
            yield folder
    except OSError as error:
        raise cannot_write(output_dir, error) from error


def _write(session: RecordedSession, config: EngineConfig, about: Mapping[str, object], output_dir: Path) -> Profile:
    """Write the trace, memory snapshots, and last the record, which names them. Raises `OutputError` or `OSError`."""
    traces = read_traces(session)
    snapshots = {stage: f"memory-{stage}.pickle" for stage in session.snapshots}
    profile = build_profile(session, traces, config, snapshots, {**about, "trace": TRACE_NAME})
    write_whole(output_dir / TRACE_NAME, merged_trace(session.profiled, traces))
    for stage, path in session.snapshots.items():
        write_whole(output_dir / snapshots[stage], path.read_bytes())
    save_record(profile, output_dir / RECORD_NAME)
    return profile
