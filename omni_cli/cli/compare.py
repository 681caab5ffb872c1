"""`omni compare`: two saved measurements, the same statistics and verdicts as in `omni bench`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from omni_cli.cli import console
from omni_cli.cli.artifacts import write_whole
from omni_cli.cli.compare_options import (
    AllowDifferenceOption,
    FirstArgument,
    GateOption,
    IdenticalOutputsOption,
    JunitOption,
    MarginOption,
    MarkdownOption,
    MaxMemoryRegressionOption,
    MaxRegressionOption,
    MetricOption,
    SecondArgument,
)
from omni_cli.cli.options import JsonOption, QuietOption, VerboseOption
from omni_cli.errors import ExitCode, InputError, OmniError, OutputError, UsageError

if TYPE_CHECKING:
    from omni_cli.config.gate_file import GateLimits
    from omni_cli.record import Record
    from omni_cli.report.bench_notes import Note
    from omni_cli.report.bench_text import Labels
    from omni_cli.stats.findings import Findings

_EDITED_HINT = "measure again with `omni bench --output-json FILE`; a record is not meant to be changed by hand"


def compare(
    a: FirstArgument,
    b: SecondArgument = None,
    max_regression: MaxRegressionOption = None,
    max_memory_regression: MaxMemoryRegressionOption = None,
    metric: MetricOption = None,
    gate: GateOption = None,
    require_identical_outputs: IdenticalOutputsOption = False,
    margin: MarginOption = "1%",
    allow_difference: AllowDifferenceOption = None,
    markdown: MarkdownOption = None,
    junit: JunitOption = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
    quiet: QuietOption = False,
) -> int:
    """Compare two records of `omni bench`, or the variants of one, and judge them by limits.

    Exits with 0 (done, or the gate passed), 1 (regression), 3 (inconclusive), 4 (not comparable), 5 (outputs
    differ where they had to be equal) or 6 (a gated variant broke off).
    """
    limits = _limits(gate, max_regression, max_memory_regression, tuple(metric or ()), require_identical_outputs)
    width = _fraction("--margin", margin)
    _need_numpy()
    from omni_cli.report.bench_notes import exit_code, warnings
    from omni_cli.report.bench_text import findings_text

    findings, labels, sources = _findings(a, b, limits, metric, width, allow_difference or [])
    _write_files(findings, labels, markdown, junit)
    if as_json:
        from omni_cli.report.bench_json import compare_document

        console.print_json(compare_document(findings, *sources))
    else:
        console.print_text(findings_text(findings, labels))
    for note in warnings(findings):
        console.print_warning(note.message, hint=note.hint)
    code = exit_code(findings)
    note = _failure(findings, code)
    if note is not None:
        console.print_error(OmniError(note.message, hint=note.hint), verbose=False)
    return code


def _findings(
    path_a: Path,
    path_b: Path | None,
    limits: GateLimits | None,
    metrics: list[str] | None,
    margin: float,
    allowed: list[str],
) -> tuple[Findings, Labels, tuple[dict[str, Any], dict[str, Any]]]:
    """What there is to say, what to call the two sides, and where they came from."""
    from omni_cli.record import read_record
    from omni_cli.report.bench_text import Labels
    from omni_cli.stats.findings import compare_records, compare_within

    record_a, edit_a = read_record(path_a)
    if path_b is None:
        if len(record_a.variants) < 2:
            raise UsageError(f"`{path_a}` has a single variant", hint="name a second record to compare it with")
        findings = compare_within(record_a, limits=_known(limits, [record_a]), metrics=metrics, margin=margin)
        record_b, edit_b, path_b = record_a, None, path_a
    else:
        record_b, edit_b = read_record(path_b)
        findings = compare_records(
            record_a, record_b, limits=_known(limits, [record_a, record_b]), metrics=metrics, margin=margin,
            allowed=allowed,
        )  # fmt: skip
    # Another machine is the better answer where both are true.
    edit = edit_a or edit_b
    if edit is not None and findings.is_comparable:
        raise InputError(edit, hint=_EDITED_HINT)
    names = (path_a.name, path_b.name) if path_a.name != path_b.name else (str(path_a), str(path_b))
    sources = tuple(
        {"path": str(path), "created": record.created} for path, record in ((path_a, record_a), (path_b, record_b))
    )
    return findings, Labels(*names), sources


def _known(limits: GateLimits | None, records: list[Record]) -> GateLimits | None:
    """The limits, if every metric that they name is in one of the records; else it is a slip of the keyboard."""
    from omni_cli.config.diagnostics import suggest
    from omni_cli.record import metric_names
    from omni_cli.stats.metrics import GATED_MEMORY

    known = dict.fromkeys([name for record in records for variant in record.variants for name in metric_names(variant)])
    for name in limits.metrics if limits else ():
        if name not in known and name not in GATED_MEMORY:
            place = limits.places.get(name) if limits else None
            hint = suggest(name, [*known, *GATED_MEMORY]) or f"there are {', '.join([*known, *GATED_MEMORY])}"
            raise UsageError(f"{place}: unknown metric `{name}`" if place else f"unknown metric `{name}`", hint=hint)
    return limits


def _limits(
    file: Path | None,
    max_regression: str | None,
    max_memory_regression: str | None,
    metrics: tuple[str, ...],
    identical_outputs: bool,
) -> GateLimits | None:
    from omni_cli.config.gate_file import load_gate_file, merge_limits

    time = None if max_regression is None else _fraction("--max-regression", max_regression)
    if time == 0:
        message = "invalid value for `--max-regression`: a limit of 0 cannot be judged"
        raise UsageError(message, hint="noise has to fit below the limit: write 2%")
    memory = None if max_memory_regression is None else _fraction("--max-memory-regression", max_memory_regression)
    return merge_limits(
        None if file is None else load_gate_file(file),
        max_regression=time,
        max_memory_regression=memory,
        metrics=metrics,
        identical_outputs=identical_outputs,
    )


def _fraction(option: str, text: str) -> float:
    from omni_cli.config.gate_file import parse_fraction

    try:
        return parse_fraction(text)
    except ValueError as error:
        raise UsageError(f"invalid value for `{option}`: {error}") from error


def _need_numpy() -> None:
    try:
        import numpy  # noqa: F401
    except ImportError as error:
        message = "comparing needs NumPy, which is not installed"
        raise OmniError(message, hint="install omni-cli with the extra `cpu`, `cuda` or `run`") from error


def _write_files(findings: Findings, labels: Labels, markdown: Path | None, junit: Path | None) -> None:
    from omni_cli.report.bench_junit import findings_junit
    from omni_cli.report.bench_markdown import findings_markdown

    if markdown is not None:
        _write(markdown, findings_markdown(findings, labels))
    if junit is not None:
        _write(junit, findings_junit(findings, f"{labels.b} against {labels.a}"))


def _write(path: Path, text: str) -> None:
    try:
        write_whole(path, text.encode("utf-8", errors="replace"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise OutputError(f"cannot write `{path}`: {reason}") from error


def _failure(findings: Findings, code: ExitCode) -> Note | None:
    from omni_cli.report.bench_notes import Note, gate_failure, not_comparable

    if code == ExitCode.OK:
        return None
    if findings.gate is not None:
        return gate_failure(findings.gate)
    if code == ExitCode.NOT_COMPARABLE:
        return not_comparable(findings.mismatches)
    return Note("no verdict: too noisy, or too few blocks", "measure more: raise `--time-budget` or `--num-iters`")
