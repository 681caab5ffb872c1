"""Printed and written reports of a finished measurement."""

from __future__ import annotations

from omni_cli.cli.bench.options import MeasureOptions
from omni_cli.cli.gate_options import write_report
from omni_cli.cli.terminal import console
from omni_cli.errors import ExitCode, OmniError
from omni_cli.loadtest.failures import hint_on
from omni_cli.record import failures_of
from omni_cli.record_file import with_digest
from omni_cli.report.bench_junit import findings_junit
from omni_cli.report.bench_markdown import findings_markdown
from omni_cli.report.bench_notes import disturbance_warnings, verdict_note, warnings
from omni_cli.report.bench_run import heading, short_title, variant_text
from omni_cli.report.bench_text import Labels, findings_text
from omni_cli.stats.verdicts import Answer

LABELS = Labels("baseline", "this run")


def show_answer(answer: Answer, options: MeasureOptions) -> None:
    """Print the document or the tables, write the files, print the warnings."""
    if options.as_json:
        console.print_json(with_digest(answer.complete_record()))
    else:
        console.print_text(_text(answer, options))
    _write_files(answer, options)
    notes = [note for findings in answer.findings for note in warnings(findings)]
    for note in (*notes, *disturbance_warnings(answer.disturbances, answer.record)):
        console.print_warning(note.message, hint=note.hint)


def failure_of(answer: Answer) -> OmniError | None:
    """Return the sentence for an exit code other than 0."""
    if answer.exit_code == ExitCode.OK:
        return None
    broken = [f"variant `{v.name}`: {v.failure}" for v in answer.record.variants if v.failure]
    if broken:
        failures = failures_of(sample for variant in answer.record.variants for sample in variant.samples)
        return OmniError("the measurement cannot be trusted: " + "; ".join(broken), hint=hint_on(failures))
    note = verdict_note(next(item for item in answer.findings if item.exit_code == answer.exit_code))
    return OmniError(note.message, hint=note.hint)


def _text(answer: Answer, options: MeasureOptions) -> str:
    record = answer.record
    parts = [heading(record, max(options.num_iters_warmup, 1))]
    for number, variant in enumerate(record.variants, start=1):
        parts.append(variant_text(number, variant, answer.summaries[variant.name]))
    parts += [findings_text(findings, LABELS) for findings in answer.findings]
    if options.output_json is not None:
        parts.append(f"Saved {options.output_json}")
    return "\n\n".join(parts)


def _write_files(answer: Answer, options: MeasureOptions) -> None:
    findings = answer.findings
    name = f"omni bench {short_title(answer.record.workload)}"
    if options.markdown is not None:
        notes = disturbance_warnings(answer.disturbances, answer.record)
        texts = [findings_markdown(item, LABELS, notes) for item in findings] or [
            f"```\n{_text(answer, options)}\n```\n"
        ]
        write_report(options.markdown, "\n".join(texts))
    if options.junit is not None and findings:
        # One suite a file: that of the gate, where there are two.
        gated = next((item for item in findings if item.gate is not None), findings[0])
        write_report(options.junit, findings_junit(gated, name))
