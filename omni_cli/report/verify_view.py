"""A verification as a view: its rows, and each difference in its text, image or sound."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from omni_cli.core.text import visible
from omni_cli.records.verify_record import DifferentPair, Row, TokenProbability, VerifyComparison, VerifyRecord
from omni_cli.report.shared_parts import get_device, get_medium, notes_on_requests, origin_sections
from omni_cli.report.tables import align
from omni_cli.report.units import count, seconds
from omni_cli.report.view import Blink, Case, Element, Gallery, Outcome, Section, Table, Tone, Verdict, View, Words

_TOKEN_WIDTH = 24
_MAX_PROBABILITIES = 200
_MAX_TEXT = 4000
_TONES: dict[str, Tone] = {"different": "bad", "near tie": "open", "equal": "good", "not checked": "plain"}


def verify_view(record: VerifyRecord, *, strict: bool = False) -> View:
    """Return the view of a verification; with `strict`, a near tie is a failed case, too."""
    subject = record.subject
    title = visible(str(subject.get("profile") or subject.get("url") or "omni verify"), 200)
    numbers = {verdict: sum(row.verdict == verdict for row in record.rows) for verdict in _TONES}
    words = ", ".join(f"{number} {verdict}" for verdict, number in numbers.items() if number)
    end = "" if record.stopped is None else f"; stopped early: {record.stopped}"
    summary = f"{count(len(record.rows), 'row')}: {words}{end}"
    word = next((verdict for verdict, number in numbers.items() if number), "not checked")
    details = [
        visible(str(subject.get("dtype") or subject.get("route") or ""), 80),
        count(len(record.rows), "row"),
        seconds(record.elapsed_s),
        get_device(record.environment),
    ]
    rows = tuple(
        (row.check if row.mode is None else f"{row.check} ({row.mode})", row.stage or "", row.verdict, _details(row))
        for row in record.rows
    )
    differences = [part for row in record.rows if row.pair for part in _difference(row, row.pair)]
    cases = [_case(row, ("different", "near tie") if strict else ("different",)) for row in record.rows]
    if record.stopped is not None:
        cases.append(Case("omni.verify", "whole run", "error", "stopped", record.stopped))
    elif word == "not checked":
        # Skipped rows alone would be a passed suite.
        cases.append(Case("omni.verify", "whole run", "error", word, "nothing could be checked"))
    return View(
        kind="Verification",
        title=title,
        details=" · ".join(filter(None, details)),
        created=record.created,
        facts={**{name: str(value) for name, value in subject.items()}, "of": record.created},
        verdict=Verdict(word, _TONES[word], (f"{summary}.",)),
        headline=summary,
        closing=f"{summary} ({seconds(record.elapsed_s)})",
        notes=notes_on_requests(record.notes),
        sections=[
            Section("Checks", [Table("All rows", ("Check", "Stage", "Verdict", "Details"), rows)]),
            Section("Differences", differences),
            *origin_sections(record.environment, {"kind": "verify", **subject}, record.command),
        ],
        cases=tuple(cases),
    )


def _case(row: Row, failures: Sequence[str]) -> Case:
    outcome: Outcome | None = "skipped" if row.verdict == "not checked" else None
    outcome = "failure" if row.verdict in failures else outcome
    return Case("omni.verify", row.name, outcome, row.verdict, _details(row))


def _details(row: Row) -> str:
    """Return a row's details in words: where it differs, or how close it is."""
    if row.verdict == "not checked":
        where = "" if row.request is None else f"request `{visible(row.request, 60)}`: "
        return where + visible(row.why or "", 300)
    parts = []
    if row.verdict != "equal":
        place = [f"request `{visible(row.request, 60)}`"] if row.request is not None else []
        place += [f"position {row.position}"] if row.position is not None else []
        place += [f"codebook {row.codebook}"] if row.codebook is not None else []
        parts += [", ".join(place)] if place else []
        if row.expected is not None and row.got is not None:
            expected = _token(row.expected, row.expected_probability)
            parts.append(f"{_token(row.got, row.got_probability)} instead of {expected}")
        if row.margin is not None and row.expected != row.got:
            parts.append(f"margin {row.margin:.2g}")
    if row.why is not None:
        parts.append(visible(row.why, 300))
    if row.logprob_diff is not None:
        noise = "" if row.noise is None else f", noise {row.noise.mean:.1g} and {row.noise.max:.1g}"
        parts.append(f"|Δ logprob| mean {row.logprob_diff.mean:.1g}, max {row.logprob_diff.max:.1g}{noise}")
    is_equal, largest = row.verdict == "equal", "max difference {:.2g}" if row.max_abs_diff else "bit-identical"
    measures = {
        "same top token {:.1%}": row.same_top,
        "KL {:.1g}": None if is_equal else row.kl,
        largest: row.max_abs_diff if is_equal else None,
        "PSNR {:.1f} dB": row.psnr_db,
        "log-mel distance {:.2f} dB": row.log_mel_distance_db,
    }
    return "; ".join([*parts, *(text.format(value) for text, value in measures.items() if value is not None)])


def _token(text: str, probability: float | None) -> str:
    chance = "" if probability is None else f" (p = {probability:.3g})"
    return f"`{visible(text, _TOKEN_WIDTH)}`{chance}"


def _difference(row: Row, pair: DifferentPair) -> Iterator[Element]:
    title = f"{row.name}, request `{row.request}`" if row.request else row.name
    if pair.expected_text is not None and pair.got_text is not None:
        yield Words(visible(title, 200), *_split_difference(pair.expected_text, pair.got_text))
    if pair.expected is not None and pair.got is not None:
        outputs = (("expected", pair.expected), ("got", pair.got))
        items = [get_medium(f"{name}: {item.text}", item) for name, item in outputs]
        can_blink = all(item.kind == "image" and item.source is not None for item in items)
        yield Blink(visible(title, 200), *items) if can_blink else Gallery(visible(title, 200), tuple(items))


def _split_difference(expected: str, got: str) -> tuple[tuple[str, str, str], tuple[str, str, str]]:
    """Split both texts into a shared beginning, what differs, and the shared end."""
    expected, got = expected[:_MAX_TEXT], got[:_MAX_TEXT]
    shorter = min(len(expected), len(got))
    begin = next((at for at in range(shorter) if expected[at] != got[at]), shorter)
    left = shorter - begin
    end = next((at for at in range(left) if expected[-1 - at] != got[-1 - at]), left)
    return _split(expected, begin, end), _split(got, begin, end)


def _split(text: str, begin: int, end: int) -> tuple[str, str, str]:
    return text[:begin], text[begin : len(text) - end], text[len(text) - end :]


def probabilities_text(probabilities: Sequence[TokenProbability]) -> str:
    """Return a table of log-probabilities by the engine and by the reference; of many, the first."""
    head = ("request", "stage", "position", "token", "engine", "reference", "ratio")
    rows = [
        (
            visible(item.request, 30),
            item.stage,
            str(item.position),
            visible(str(item.token_id) if item.token is None else repr(item.token), _TOKEN_WIDTH),
            f"{item.engine_logprob:.6f}",
            f"{item.reference_logprob:.6f}",
            f"{item.ratio:.6f}",
        )
        for item in probabilities[:_MAX_PROBABILITIES]
    ]
    more = len(probabilities) - len(rows)
    end = [f"  and {more} more, in `--json` and beside `--output-json`"] if more else []
    return "\n".join([*align([head, *rows], right=frozenset({2, 4, 5, 6})), *end])


def verify_comparison_text(comparison: VerifyComparison) -> str:
    """Return the rows whose verdict changed, those that became worse first."""
    if not comparison.changes:
        return "no verdict has changed"
    rows = [
        (
            "worse" if change.is_worse else "better",
            change.name,
            f"{change.before or 'absent'} -> {change.after or 'absent'}",
            visible(change.why or "", 200),
        )
        for change in comparison.changes
    ]
    return "\n".join(align(rows))
