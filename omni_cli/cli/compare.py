"""`omni compare`: two saved records, with the statistics and verdicts of `omni bench`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from omni_cli.cli.options import (
    DEFAULT_MARGIN,
    AllowDifferenceOption,
    GateOptions,
    MarginOption,
    MaxMemoryRegressionOption,
    argument,
    option,
    read_fraction,
    refuse_failed,
    show_view,
    write_view,
)
from omni_cli.cli.terminal import console
from omni_cli.core.errors import ExitCode, InputError, UsageError
from omni_cli.records.verify_record import is_verify_record

if TYPE_CHECKING:
    from omni_cli.config.gate_limits import GateLimits
    from omni_cli.records.results import RecordOrigin
    from omni_cli.report.view import Note, View
    from omni_cli.stats.verdicts import ComparisonResult, ComparisonSpec

_EDITED_HINT = "measure again with `omni bench --output-json FILE`; records must not be edited by hand"


@dataclass(frozen=True, kw_only=True)
class CompareOptions(GateOptions):
    """Two records, and the limits to judge them by."""

    a: Path = argument("A.json", "The record to compare with, or the file of another tool.")
    b: Path | None = argument("B.json", "The record to judge; without it, the variants of A.json.", default=None)
    max_memory_regression: MaxMemoryRegressionOption = None
    margin: MarginOption = DEFAULT_MARGIN
    allow_difference: AllowDifferenceOption = None
    self_check: bool = option(
        "--self-check",
        "Compare a single variant with itself: the smallest regression that its noise lets show; refuses limits "
        "below it.",
        default=False,
    )


def compare(options: CompareOptions) -> int:
    """Compare two records of `omni bench`, or the variants of one, and judge them by limits; or two of `omni verify`.

    Exit codes: 0 (done, or the gate passed), 1 (regression), 3 (inconclusive), 4 (not comparable), 5 (outputs
    differ where they had to be equal), 6 (a variant failed, or some of its runs or requests did).
    """
    if is_verify_record(options.a) or (options.b is not None and is_verify_record(options.b)):
        from omni_cli.cli.verify.command import compare_verifications

        return compare_verifications(options.a, options.b, as_json=options.as_json)
    limits = options.limits(options.max_memory_regression)
    margin = read_fraction("--margin", options.margin)
    if options.self_check:
        return _check_itself(options.a, options.b, limits, as_json=options.as_json)
    from omni_cli.stats.verdicts import ComparisonSpec

    metrics = None if options.metric is None else tuple(options.metric)
    spec = ComparisonSpec(limits, metrics, margin, allowed=tuple(options.allow_difference or ()))
    result, view, suite, sources = compare_files(options.a, options.b, spec)
    from omni_cli.report.comparison_view import compare_document

    write_view(view, suite, options.markdown, options.junit)
    show_view(view, compare_document(result, *sources), as_json=options.as_json)
    return result.exit_code


def _check_itself(a: Path, b: Path | None, limits: GateLimits | None, *, as_json: bool) -> ExitCode:
    """Report A against A of a single variant. Raises `NoiseError` for a limit that cannot be judged there."""
    import msgspec

    from omni_cli.records.record import load_record
    from omni_cli.report.bench_view import self_check_text
    from omni_cli.stats.compare import refuse_limits_below, self_check

    record = load_record(a)
    if b is not None or len(record.variants) != 1:
        hint = "measure one: `omni bench --output-json FILE` without `--vary`" if b is None else f"leave out `{b}`"
        raise UsageError("`--self-check` needs one record of a single variant", hint=hint)
    refuse_failed(record, a)
    check = self_check(record.variants[0])
    if as_json:
        console.print_json({"schema": "omni.self_check/1", **msgspec.to_builtins(check)})
    else:
        console.print_text(self_check_text(check))
    times = {} if limits is None else limits.metrics
    refuse_limits_below(check, {name: limit for name, limit in times.items() if not name.endswith("_bytes")})
    return ExitCode.OK


def compare_files(
    path_a: Path, path_b: Path | None, spec: ComparisonSpec | None = None
) -> tuple[ComparisonResult, View, str, tuple[RecordOrigin, RecordOrigin]]:
    """Return the findings, their view with the disturbances of the two machines, their name, and the two files."""
    from msgspec.structs import replace

    from omni_cli.records.importers.building import Imported
    from omni_cli.records.importers.files import load_newest
    from omni_cli.records.results import RecordOrigin
    from omni_cli.report.comparison_view import comparison_view
    from omni_cli.report.comparison_words import Labels
    from omni_cli.report.disturbance_words import disturbance_warnings
    from omni_cli.report.view import Note
    from omni_cli.stats.comparable import disturbances, split_allowed
    from omni_cli.stats.gate import check_limits
    from omni_cli.stats.verdicts import ComparisonSpec, compare_records, compare_within

    spec = spec or ComparisonSpec()
    a = load_newest(path_a)
    b = Imported(a.record) if path_b is None else load_newest(path_b)
    record_a, record_b = a.record, b.record
    check_limits(spec.limits, [record_a, record_b])
    if path_b is None:
        if len(record_a.variants) < 2:
            raise UsageError(f"`{path_a}` has a single variant", hint="pass a second record to compare it with")
        result = compare_within(record_a, spec)
        path_b = path_a
    else:
        result = compare_records(record_a, record_b, spec)
    # If both are true, another machine is the more useful answer.
    edit = a.edit or b.edit
    if edit is not None and result.is_comparable:
        raise InputError(edit, hint=_EDITED_HINT)
    names = (path_a.name, path_b.name) if path_a.name != path_b.name else (str(path_a), str(path_b))
    sources = RecordOrigin(str(path_a), record_a.created), RecordOrigin(str(path_b), record_b.created)
    notes: list[Note] = []
    disturbed = [(names[0], record_a)]
    if [item.samples for item in record_a.variants] != [item.samples for item in record_b.variants]:
        disturbed.append((names[1], record_b))
    elif record_b is not record_a:
        notes.append(Note("both records are the same measurement", "measure again to see the noise between two runs"))
    notes += [Note(f"{name}: {text}") for name, item in zip(names, (a, b), strict=True) for text in item.missing]
    excused = [*result.differences, *(item for pair in result.pairs for item in pair.differences)]
    unused = [name for name in spec.allowed if result.mismatches and not split_allowed(excused, [name])[1]]
    notes += [Note(f"`--allow-difference {name}` names none of the fields that differ") for name in unused]
    for name, record in disturbed:
        warned = disturbance_warnings(disturbances(record), record)
        notes += [replace(note, message=f"{name}: {note.message}") for note in warned]
    return result, comparison_view(result, Labels(*names), notes), f"{names[1]} against {names[0]}", sources
