"""A verification as text and Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from omni_cli.report.tables import aligned
from omni_cli.report.units import count, seconds
from omni_cli.text import visible
from omni_cli.verify_record import Row, TokenProbability, Verdict, VerifyComparison, VerifyRecord

_TOKEN_WIDTH = 24
_MAX_PROBABILITIES = 200
COLUMNS = ("check", "stage", "verdict", "details")


def verify_text(record: VerifyRecord) -> str:
    """Return the table of all rows, and a sentence on the whole."""
    rows = [COLUMNS, *(row_cells(row) for row in record.rows)]
    return "\n".join([*aligned(rows), "", f"{summary(record)} ({seconds(record.elapsed_s)})"])


def summary(record: VerifyRecord) -> str:
    """Return one sentence: how many rows have which verdict."""
    order: tuple[Verdict, ...] = ("different", "near tie", "equal", "not checked")
    counts = {verdict: sum(row.verdict == verdict for row in record.rows) for verdict in order}
    words = ", ".join(f"{number} {verdict}" for verdict, number in counts.items() if number)
    end = "" if record.stopped is None else f"; stopped early: {record.stopped}"
    return f"{count(len(record.rows), 'row')}: {words}{end}"


def row_cells(row: Row) -> tuple[str, str, str, str]:
    """Return the cells of a row's line."""
    check = row.check if row.mode is None else f"{row.check} ({row.mode})"
    return check, row.stage or "", row.verdict, details(row)


def details(row: Row) -> str:
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
    if row.same_top is not None:
        parts.append(f"same top token {row.same_top:.1%}")
    if row.kl is not None and row.verdict != "equal":
        parts.append(f"KL {row.kl:.1g}")
    if row.max_abs_diff is not None and row.verdict == "equal":
        parts.append("bit-identical" if row.max_abs_diff == 0 else f"max difference {row.max_abs_diff:.2g}")
    if row.psnr_db is not None:
        parts.append(f"PSNR {row.psnr_db:.1f} dB")
    if row.log_mel_distance_db is not None:
        parts.append(f"log-mel distance {row.log_mel_distance_db:.2f} dB")
    return "; ".join(parts)


def _token(text: str, probability: float | None) -> str:
    chance = "" if probability is None else f" (p = {probability:.3g})"
    return f"`{visible(text, _TOKEN_WIDTH)}`{chance}"


def verify_markdown(record: VerifyRecord) -> str:
    """Return the rows as a Markdown table."""
    lines = [f"**{summary(record)}**", "", f"| {' | '.join(COLUMNS)} |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(_cell(cell) for cell in row_cells(row))} |" for row in record.rows]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


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
    return "\n".join([*aligned([head, *rows], right=frozenset({2, 4, 5, 6})), *end])


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
    return "\n".join(aligned(rows))
