"""`omni verify`: checks whether outputs are those of the reference, and stay the same."""

from __future__ import annotations

from pathlib import Path

import msgspec

from omni_cli.cli.options import check_output_files
from omni_cli.cli.terminal import console
from omni_cli.cli.verify.options import VerifyOptions
from omni_cli.core.errors import ExitCode, UsageError

_OF_PROFILES = ("profile", "vary", "set_")


def verify(options: VerifyOptions) -> int:
    """Check whether a profile, a model or a running server gives the right outputs.

    The same requests run in the engine and in transformers or diffusers, alone and batched, streamed, repeated, with
    other seeds and limits. Exits with 0 (all equal or near ties), 5 (different), 3 (nothing could be decided) or 6
    (the run failed).
    """
    check_output_files(options.output_json, options.junit, options.markdown)
    if options.url is not None:
        # With `--model`, the reference uses the adapter.
        names = _OF_PROFILES if options.model is not None else (*_OF_PROFILES, "lora")
        wrong = next((name for name in names if getattr(options, name)), None)
        if wrong is not None:
            raise UsageError(f"`--{wrong.rstrip('_')}` is for profiles, and `--url` names a server")
        from omni_cli.cli.verify.run import verify_server

        return verify_server(options)
    if options.served_model_name is not None or options.route != "chat" or options.wait is not None:
        raise UsageError("`--route`, `--served-model-name` and `--wait` are for servers", hint="add `--url URL`")
    from omni_cli.cli.verify.run import verify_profile

    return verify_profile(options)


def compare_verifications(a: Path, b: Path | None, *, as_json: bool) -> ExitCode:
    """Print what changed from one record to the other; the exit code is 5 if a row has become different."""
    from omni_cli.records.verify_record import VerifyComparison, get_changes, load_verify_record
    from omni_cli.report.verify_view import verify_comparison_text

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
