"""`omni report`: saved records as one HTML page."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from omni_cli.cli.options import (
    QuietOption,
    VerboseOption,
    argument,
    check_output_files,
    option,
    refuse_failed,
    write_report,
)
from omni_cli.cli.terminal import console
from omni_cli.core.errors import InputError, OmniError, UsageError
from omni_cli.core.text import visible

if TYPE_CHECKING:
    from omni_cli.report.view import View


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """The records, and the file to write."""

    records: list[Path] = argument(
        "RECORD...",
        "Files of `omni bench`, `omni profile`, `omni tune`, `omni verify`, `omni compare --json` or other tools, "
        "or a folder of records.",
    )
    output: Path = option("--output -o FILE", "The HTML file to write.", default=Path("report.html"))
    smaller_is_better: Path | None = option(
        "--smaller-is-better FILE",
        "Write the medians of bench records as github-action-benchmark's customSmallerIsBetter instead of a page.",
    )
    verbose: VerboseOption = False
    quiet: QuietOption = False


def report(options: ReportOptions) -> None:
    """Show records as one HTML page that needs no network: verdicts, figures, environment, how to repeat them.

    Two bench records are compared, too.
    """
    records, output = options.records, options.output
    if options.smaller_is_better is not None:
        _write_smaller_is_better(options.smaller_is_better, records)
        return
    _check_output(output, records)
    if output.suffix not in ("", ".html", ".htm"):
        console.print_warning(f"`{output}` gets an HTML page, whatever its name")
    _need_libraries()
    from omni_cli.cli.report_documents import load_view
    from omni_cli.report.html.page import render_page

    # Read every record before writing: a broken one leaves an earlier page untouched.
    views = [load_view(path) for path in records]
    if len(views) == 2 and {view.kind for view in views} == {"Benchmark"}:
        views = [*_comparison(*records), *views]
    write_report(output, render_page(views))
    console.print_text(str(output))


def _comparison(a: Path, b: Path) -> list[View]:
    """Return what comes of comparing two records with each other, unless they have nothing in common."""
    from msgspec.structs import replace

    from omni_cli.cli.compare import compare_files

    try:
        view = compare_files(a, b)[1]
    except InputError as error:
        console.print_warning(f"not compared: {error.message}", hint=error.hint)
        return []
    return [replace(view, source=visible(f"{a}, {b}"))]


def _write_smaller_is_better(output: Path, records: list[Path]) -> None:
    _check_output(output, records)
    from omni_cli.records.record import load_record
    from omni_cli.report.bench_view import smaller_is_better_json
    from omni_cli.stats.blocks import get_summaries

    loaded = [(load_record(path), path) for path in records]
    for record, path in loaded:
        refuse_failed(record, path)
    variants = [variant for record, _ in loaded for variant in record.variants]
    entries = [entry for variant in variants for entry in smaller_is_better_json(variant, get_summaries(variant))]
    write_report(output, json.dumps(entries, indent=2) + "\n")
    console.print_text(str(output))


def _check_output(output: Path, records: list[Path]) -> None:
    """Check the output path before any record is read. Raises `OmniError`."""
    check_output_files(output)
    if any(path.exists() and output.exists() and path.samefile(output) for path in records):
        raise UsageError(f"the page would overwrite the record `{output}`", hint="name another file with `-o`")


def _need_libraries() -> None:
    """Raise `OmniError` unless the libraries that fill the page are installed."""
    try:
        import jinja2  # noqa: F401
        import msgspec  # noqa: F401
        import numpy  # noqa: F401
    except ImportError as error:
        message = f"a report needs {error.name}, which is not installed"
        raise OmniError(message, hint='install it with `pip install "omni-cli[report]"`') from error
