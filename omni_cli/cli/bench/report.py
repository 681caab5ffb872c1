"""What `omni bench` prints and writes when it has measured."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from omni_cli.bench.verdicts import Answer, Question, summaries_of
from omni_cli.cli.gate_options import write_report
from omni_cli.cli.terminal import console
from omni_cli.errors import ExitCode, OmniError, OutputError
from omni_cli.loadtest.failures import hint_on
from omni_cli.record import failures_of, to_document
from omni_cli.report.bench_json import smaller_is_better_json
from omni_cli.report.bench_junit import findings_junit
from omni_cli.report.bench_markdown import findings_markdown
from omni_cli.report.bench_notes import gate_failure, machine_warnings, not_comparable, warnings
from omni_cli.report.bench_run import heading, self_check_json, self_check_text, short_title, variant_text
from omni_cli.report.bench_text import Labels, findings_text
from omni_cli.stats.power import refuse_limits_below, self_check

if TYPE_CHECKING:
    from omni_cli.cli.bench.command import Files, Settings

LABELS = Labels("baseline", "this run")


def check_writable(files: Files) -> None:
    """Raise `OutputError` now rather than after minutes of measuring."""
    for path in (files.record, files.junit, files.markdown, files.smaller_is_better):
        if path is None:
            continue
        if path.is_dir():
            raise OutputError(f"cannot write `{path}`: it is a folder")
        if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
            raise OutputError(f"cannot write `{path}`: no folder `{path.parent}` that may be written to")


def show_answer(answer: Answer, settings: Settings) -> ExitCode:
    """The document, or the tables; then the files and the warnings. Returns what the answer's exit code is."""
    if settings.as_json:
        console.print_json(to_document(answer.complete_record()))
    else:
        console.print_text(_text(answer, settings))
    _write_files(answer, settings)
    notes = [note for findings in answer.findings for note in warnings(findings)]
    for note in (*notes, *machine_warnings(answer.record)):
        console.print_warning(note.message, hint=note.hint)
    return answer.exit_code


def show_self_check(answer: Answer, question: Question, settings: Settings) -> ExitCode:
    """A against A. Raises `NoiseError` for a limit that cannot be judged here."""
    check = self_check(answer.record.variants[0])
    if settings.as_json:
        console.print_json({**to_document(answer.complete_record()), "self_check": self_check_json(check)})
    else:
        console.print_text(_text(answer, settings) + "\n\n" + self_check_text(check))
    limits = question.limits.metrics if question.limits else {}
    refuse_limits_below(check, {name: limit for name, limit in limits.items() if not name.endswith("_bytes")})
    return ExitCode.OK


def failure_of(answer: Answer, code: ExitCode) -> OmniError | None:
    """The sentence for an exit code that is not 0."""
    if code == ExitCode.OK:
        return None
    broken = [f"variant `{v.name}`: {v.error}" for v in answer.record.variants if v.error is not None]
    gates = [findings.gate for findings in answer.findings if findings.gate is not None]
    if broken:
        failures = failures_of(sample for variant in answer.record.variants for sample in variant.samples)
        return OmniError("the measurement cannot be trusted: " + "; ".join(broken), hint=hint_on(failures))
    if gates:
        note = gate_failure(gates[0])
        return OmniError(note.message, hint=note.hint)
    if code == ExitCode.NOT_COMPARABLE:
        note = not_comparable([item for findings in answer.findings for item in findings.mismatches])
        return OmniError(note.message, hint=note.hint)
    return OmniError(
        "no verdict: too noisy, or too few blocks", hint="measure more: raise `--time-budget` or `--num-iters`"
    )


def _text(answer: Answer, settings: Settings) -> str:
    record = answer.record
    parts = [heading(record, max(settings.num_iters_warmup, 1))]
    for number, variant in enumerate(record.variants, start=1):
        parts.append(variant_text(number, variant, summaries_of(variant)))
    parts += [findings_text(findings, LABELS) for findings in answer.findings]
    if settings.files.record is not None:
        parts.append(f"Saved {settings.files.record}")
    return "\n\n".join(parts)


def _write_files(answer: Answer, settings: Settings) -> None:
    files, findings = settings.files, answer.findings
    name = f"omni bench {short_title(answer.record.workload)}"
    if files.markdown is not None:
        notes = machine_warnings(answer.record)
        texts = [findings_markdown(item, LABELS, notes) for item in findings] or [
            f"```\n{_text(answer, settings)}\n```\n"
        ]
        write_report(files.markdown, "\n".join(texts))
    if files.junit is not None and findings:
        # One suite a file: that of the gate, where there are two.
        gated = next((item for item in findings if item.gate is not None), findings[0])
        write_report(files.junit, findings_junit(gated, name))
    if files.smaller_is_better is not None:
        entries = [
            entry
            for variant in answer.record.variants
            for entry in smaller_is_better_json(variant.name, summaries_of(variant))
        ]
        write_report(files.smaller_is_better, json.dumps(entries, indent=2) + "\n")
