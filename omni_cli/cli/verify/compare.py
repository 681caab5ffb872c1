"""`omni compare` of two records of `omni verify`: the rows whose verdicts changed."""

from __future__ import annotations

from pathlib import Path

import msgspec

from omni_cli.cli.terminal import console
from omni_cli.errors import ExitCode, UsageError
from omni_cli.report.verify_text import verify_comparison_text
from omni_cli.verify_record import VerifyComparison, get_changes, load_verify_record


def compare_verifications(a: Path, b: Path | None, *, as_json: bool) -> ExitCode:
    """Print what changed from one record to the other; the exit code is 5 if a row has become different."""
    if b is None:
        raise UsageError(f"`{a}` is a record of `omni verify`", hint="pass a second one to compare it with")
    changes = get_changes(load_verify_record(a), load_verify_record(b))
    comparison = VerifyComparison(a=str(a), b=str(b), changes=changes)
    if as_json:
        console.print_json(msgspec.to_builtins(comparison))
    else:
        console.print_text(verify_comparison_text(comparison))
    became_different = any(change.is_worse and change.after == "different" for change in changes)
    return ExitCode.OUTPUT_MISMATCH if became_different else ExitCode.OK
