"""Printed and written reports of a finished measurement."""

from __future__ import annotations

from omni_cli.cli.bench.options import MeasureOptions
from omni_cli.cli.gate_options import write_report
from omni_cli.cli.terminal import console
from omni_cli.errors import ExitCode, OmniError
from omni_cli.loadtest.failures import hint_on
from omni_cli.record import failures_of
from omni_cli.record_file import with_digest
from omni_cli.report.bench_junit import comparison_junit
from omni_cli.report.bench_markdown import comparison_markdown
from omni_cli.report.bench_notes import disturbance_warnings, verdict_note, warnings
from omni_cli.report.bench_run import heading, short_title, variant_text
from omni_cli.report.bench_text import Labels, comparison_text
from omni_cli.stats.verdicts import BenchmarkReport

LABELS = Labels("baseline", "this run")


def show_report(report: BenchmarkReport, options: MeasureOptions) -> None:
    """Print the document or the tables, write the files, print the warnings."""
    if options.as_json:
        console.print_json(with_digest(report.complete_record()))
    else:
        console.print_text(_text(report, options))
    _write_files(report, options)
    notes = [note for result in report.results for note in warnings(result)]
    for note in (*notes, *disturbance_warnings(report.disturbances, report.record)):
        console.print_warning(note.message, hint=note.hint)


def failure_of(report: BenchmarkReport) -> OmniError | None:
    """Return the sentence for an exit code other than 0."""
    if report.exit_code == ExitCode.OK:
        return None
    broken = [f"variant `{v.name}`: {v.failure}" for v in report.record.variants if v.failure]
    if broken:
        failures = failures_of(sample for variant in report.record.variants for sample in variant.samples)
        return OmniError("the measurement cannot be trusted: " + "; ".join(broken), hint=hint_on(failures))
    note = verdict_note(next(item for item in report.results if item.exit_code == report.exit_code))
    return OmniError(note.message, hint=note.hint)


def _text(report: BenchmarkReport, options: MeasureOptions) -> str:
    record = report.record
    parts = [heading(record, max(options.num_iters_warmup, 1))]
    for number, variant in enumerate(record.variants, start=1):
        parts.append(variant_text(number, variant, report.summaries[variant.name]))
    parts += [comparison_text(result, LABELS) for result in report.results]
    if options.output_json is not None:
        parts.append(f"Saved {options.output_json}")
    return "\n\n".join(parts)


def _write_files(report: BenchmarkReport, options: MeasureOptions) -> None:
    results = report.results
    name = f"omni bench {short_title(report.record.workload)}"
    if options.markdown is not None:
        notes = disturbance_warnings(report.disturbances, report.record)
        texts = [comparison_markdown(item, LABELS, notes) for item in results] or [
            f"```\n{_text(report, options)}\n```\n"
        ]
        write_report(options.markdown, "\n".join(texts))
    if options.junit is not None and results:
        # One suite a file: that of the gate, where there are two.
        gated = next((item for item in results if item.gate is not None), results[0])
        write_report(options.junit, comparison_junit(gated, name))
