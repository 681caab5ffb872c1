"""A verification as a document: its rows, and each difference in its text, image or sound."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from omni_cli.record import KeptOutput
from omni_cli.report.html.elements import (
    Blink,
    Document,
    Gallery,
    Part,
    Shown,
    Table,
    Tone,
    Verdict,
    Words,
    get_sections,
)
from omni_cli.report.html.machine import environment_parts, get_device, reproduce_parts
from omni_cli.report.html.outputs_part import shown_source
from omni_cli.report.units import count, seconds
from omni_cli.report.verify_text import COLUMNS, row_cells, summary
from omni_cli.text import visible
from omni_cli.verify_record import DifferentPair, Row, VerifyRecord

_MAX_TEXT = 4000
_TONES: dict[str, Tone] = {"different": "bad", "near tie": "open", "equal": "good", "not checked": "plain"}


def verify_document(record: VerifyRecord, source: str) -> Document:
    """Return the document of a verification."""
    subject = record.subject
    word = next((verdict for verdict in _TONES if any(row.verdict == verdict for row in record.rows)), "not checked")
    details = [
        visible(str(subject.get("dtype") or subject.get("route") or ""), 80),
        count(len(record.rows), "row"),
        seconds(record.elapsed_s),
        get_device(record.environment),
    ]
    head = tuple(column[:1].upper() + column[1:] for column in COLUMNS)
    table = Table("All rows", head, tuple(row_cells(row) for row in record.rows))
    return Document(
        kind="Verification",
        source=source,
        title=visible(str(subject.get("profile") or subject.get("url") or "omni verify"), 200),
        details=" · ".join(filter(None, details)),
        created=record.created,
        verdict=Verdict(word, _TONES[word], (f"{summary(record)}.",)),
        sections=get_sections(
            [
                ("Checks", [table]),
                ("Differences", [part for row in record.rows if row.pair for part in _difference(row, row.pair)]),
                ("Environment", environment_parts(record.environment, {"kind": "verify", **subject})),
                ("Reproduce", reproduce_parts(record.command, record.environment)),
            ]
        ),
    )


def _difference(row: Row, pair: DifferentPair) -> Iterator[Part]:
    title = f"{row.name}, request `{row.request}`" if row.request else row.name
    if pair.expected_text is not None and pair.got_text is not None:
        yield Words(visible(title, 200), *_marked(pair.expected_text, pair.got_text))
    if pair.expected is not None and pair.got is not None:
        yield from _outputs(visible(title, 200), pair.expected, pair.got)


def _marked(expected: str, got: str) -> tuple[tuple[str, str, str], tuple[str, str, str]]:
    """Split both texts into a shared beginning, what differs, and the shared end."""
    expected, got = expected[:_MAX_TEXT], got[:_MAX_TEXT]
    shorter = min(len(expected), len(got))
    begin = next((at for at in range(shorter) if expected[at] != got[at]), shorter)
    left = shorter - begin
    end = next((at for at in range(left) if expected[-1 - at] != got[-1 - at]), left)
    return _split(expected, begin, end), _split(got, begin, end)


def _split(text: str, begin: int, end: int) -> tuple[str, str, str]:
    return text[:begin], text[begin : len(text) - end], text[len(text) - end :]


def _outputs(title: str, expected: KeptOutput, got: KeptOutput) -> Iterator[Part]:
    kind: Literal["image", "audio"] = "audio" if got.kind == "audio" else "image"
    sources = [shown_source(item) for item in (expected, got)]
    if kind == "image" and None not in sources:
        yield Blink(title, f"expected: {expected.text}", f"got: {got.text}", sources[0] or "", sources[1] or "")
        return
    named = zip(("expected", "got"), (expected, got), sources, strict=True)
    yield Gallery(title, tuple(Shown(kind, f"{name}: {item.text}", source) for name, item, source in named))
