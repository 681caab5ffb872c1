"""Run checks with progress and a clean end, and write what they found: all of it, or what an early end left."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from omni_cli.bench.environment import read_environment
from omni_cli.cli.gate_options import write_report
from omni_cli.cli.terminal import console
from omni_cli.cli.terminal.live_display import LiveLine
from omni_cli.cli.terminal.stop_signals import run_until_stopped
from omni_cli.errors import ExitCode, OmniError
from omni_cli.files import scratch_folder
from omni_cli.record_file import save_record, utc_now, with_digest
from omni_cli.report.verify_junit import verify_junit
from omni_cli.report.verify_text import probabilities_text, verify_markdown, verify_text
from omni_cli.verify_record import TokenProbability, VerifyRecord, exit_code

if TYPE_CHECKING:
    from omni_cli.cli.verify.options import VerifyOptions
    from omni_cli.verify.checks import Checks


def run_checks(
    start: Callable[[Path, Callable[[str], None]], Checks],
    subject: dict[str, Any],
    options: VerifyOptions,
    command: Sequence[str],
    began_s: float,
) -> ExitCode:
    """Run the checks that `start` makes with a folder for files and a function that shows progress.

    Raises `OmniError` if it ends before any check is done.
    """
    environment = read_environment()
    line = LiveLine(sys.stderr, quiet=options.quiet or options.as_json, verbose=options.verbose)
    try:
        with scratch_folder("omni-verify-") as folder:
            checking = start(folder, line.say)
            work, stopped = asyncio.run(run_until_stopped(checking.run(), options.timeout))
            failure = None if work.cancelled() else work.exception()
    finally:
        line.hide()
    if failure is not None:
        if not isinstance(failure, OmniError) or not checking.rows:
            raise failure
        stopped = failure
    if stopped is not None and not checking.rows:
        raise stopped
    record = VerifyRecord(
        created=utc_now(),
        command=tuple(command),
        environment=environment,
        subject=subject,
        rows=tuple(checking.rows),
        elapsed_s=time.monotonic() - began_s,
        stopped=None if stopped is None else stopped.message,
    )
    _write(record, checking.probabilities, options)
    if stopped is not None:
        console.print_error(stopped, verbose=options.verbose)
        return stopped.exit_code if stopped.exit_code is ExitCode.INTERRUPTED else ExitCode.RUN_FAILED
    code = exit_code(record.rows, strict=options.strict)
    if code is ExitCode.INCONCLUSIVE:
        console.print_error(OmniError("nothing could be decided"), verbose=False)
    return code


def _write(record: VerifyRecord, probabilities: Sequence[TokenProbability], options: VerifyOptions) -> None:
    if options.output_json is not None:
        save_record(record, options.output_json)
    if options.markdown is not None:
        write_report(options.markdown, verify_markdown(record))
    if options.junit is not None:
        write_report(options.junit, verify_junit(record, strict=options.strict))
    noted = options.logprobs and probabilities
    if options.as_json:
        extra = {"logprobs": msgspec.to_builtins(probabilities)} if noted else {}
        console.print_json({**with_digest(record), **extra})
        return
    if noted:
        console.print_text(probabilities_text(probabilities) + "\n")
        if options.output_json is not None:
            path = options.output_json.with_suffix(".logprobs.jsonl")
            write_report(path, "".join(json.dumps(msgspec.to_builtins(item)) + "\n" for item in probabilities))
            console.print_text(f"log-probabilities: {path}\n")
    console.print_text(verify_text(record))
