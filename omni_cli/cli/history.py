"""`omni history`: records over time, the steps in their metrics, and a check for CI."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from omni_cli.cli.lazy import command_group
from omni_cli.cli.options import (
    AllowDifferenceOption,
    DisplayOptions,
    read_fraction,
    shared_option,
    show_view,
    write_view,
)
from omni_cli.cli.terminal import console
from omni_cli.core.errors import InputError

if TYPE_CHECKING:
    from omni_cli.records.results import HistoryRecord

FolderOption = Annotated[Path, shared_option("--history DIR", "The folder that keeps the records.")]
DEFAULT_FOLDER = Path("history")


def add(
    display: DisplayOptions,
    records: Annotated[
        list[Path],
        typer.Argument(metavar="RECORD...", help="Bench records, or results of other tools; see docs/history.md."),
    ],
    folder: FolderOption = DEFAULT_FOLDER,
    commit: Annotated[
        str | None, shared_option("--commit SHA", "The measured commit, for results of tools that do not name it.")
    ] = None,
) -> None:
    """Add records to a history. A measurement that it has already is not added again."""
    from omni_cli.records.history_folder import keep
    from omni_cli.records.importers.files import in_order, load_any
    from omni_cli.stats.verdicts import failed_variants, own_report

    # All are read before any is written: a broken one changes nothing.
    loaded = [(path, item) for path in records for item in load_any(path, commit=commit)]
    loaded, guess = in_order(loaded)
    if guess:
        console.print_warning(guess)
    edit = next((item.edit for _, item in loaded if item.edit), None)
    if edit is not None:
        raise InputError(edit, hint="measure again with `omni bench --output-json FILE`")
    entries, failed = [], list[str]()
    for path, item in loaded:
        file, is_new = keep(own_report(item.record).complete_record() if item.missing else item.record, folder)
        failures = failed_variants(item.record.variants)
        entries.append(
            {"record": str(path), "file": str(file), "added": is_new, "missing": list(item.missing),
             "failures": list(failures)}
        )  # fmt: skip
        failed += [f"{path}: {text}" for text in failures]
        if not display.as_json:
            console.print_text(f"{file}" if is_new else f"{file}: there already")
    for text in failed:
        console.print_warning(f"{text}; no series uses it")
    for path, missing in dict.fromkeys((path, text) for path, item in loaded for text in item.missing):
        console.print_warning(f"{path}: {missing}")
    if display.as_json:
        console.print_json({"schema": "omni.history.add/1", "records": entries})


def show(
    display: DisplayOptions,
    folder: FolderOption = DEFAULT_FOLDER,
    metric: Annotated[
        list[str] | None, shared_option("--metric NAME", "Show only this metric. Repeatable. Default: all.")
    ] = None,
    allow_difference: AllowDifferenceOption = None,
) -> None:
    """Show every series of a history, and its steps with the commits that they lie between."""
    from omni_cli.report.history_view import history_view

    document = _read(folder, metric, allow_difference)
    show_view(history_view(document), document, as_json=display.as_json)


def check(
    display: DisplayOptions,
    folder: FolderOption = DEFAULT_FOLDER,
    metric: Annotated[
        list[str] | None, shared_option("--metric NAME", "Check this metric. Repeatable. Default: e2e_s.")
    ] = None,
    max_regression: Annotated[
        str | None,
        shared_option(
            "--max-regression PERCENT",
            "The allowed worsening, such as 5%. Without it, every step for the worse of more than 2% fails.",
        ),
    ] = None,
    since: Annotated[
        str | None,
        shared_option("--since DATE", "Ignore steps before this date, such as 2026-11-20: they are known."),
    ] = None,
    allow_difference: AllowDifferenceOption = None,
    markdown: Annotated[Path | None, shared_option("--markdown FILE", "Also write the report as Markdown.")] = None,
) -> int:
    """Check that the newest record is not worse than the ones before it.

    Exit codes: 0 (no step for the worse), 1 (regression: a step for the worse that is still there), 3
    (inconclusive: too few records, or too noisy for the limit), 4 (not comparable: the first record of another
    machine, other versions or another workload), 6 (the newest record failed, or some of its runs or requests did).
    """
    from omni_cli.records.metrics import E2E

    limit = None if max_regression is None else read_fraction("--max-regression", max_regression)
    from omni_cli.records.history_folder import utc
    from omni_cli.records.results import EXIT_CODES
    from omni_cli.report.history_view import history_view
    from omni_cli.stats.history import judge_history

    moment = "" if since is None else utc(since, "`--since`")
    document = judge_history(_read(folder, metric or [E2E], allow_difference), limit, moment)
    assert document.verdict is not None  # as just judged
    view = history_view(document)
    write_view(view, document.verdict, markdown)
    show_view(view, document, as_json=display.as_json)
    return EXIT_CODES[document.verdict]


def _read(folder: Path, metrics: list[str] | None, allowed: list[str] | None) -> HistoryRecord:
    from omni_cli.records.history_folder import read_folder
    from omni_cli.stats.history import get_history

    return get_history(read_folder(folder), str(folder), metrics, allowed or ())


history = command_group("Keep records over time, and find the steps in their metrics.", add=add, show=show, check=check)
