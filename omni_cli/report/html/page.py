"""Views as one page, by Jinja's templates, which escape everything except the drawings."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from msgspec.structs import replace

from omni_cli import __version__
from omni_cli.records.labels import tell_apart
from omni_cli.report.html.drawing import draw_chart
from omni_cli.report.view import Changes, Element, LimitList, Paragraph, Section, Table, View, sentence


def render_page(views: Sequence[View]) -> str:
    """Render one HTML file without external resources."""
    environment = Environment(
        loader=PackageLoader("omni_cli.report.html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable,
    )
    style = files("omni_cli.report.html").joinpath("templates/page.css").read_text(encoding="utf-8")
    environment.filters |= {"moment": _moment, "code": _code, "sentence": sentence}
    environment.globals |= {"draw": draw_chart, "sections": _get_sections}
    template = environment.get_template("page.html")
    titles = tell_apart([view.title for view in views], [{**view.facts, "in": view.source} for view in views])
    views = [replace(view, title=title) for view, title in zip(views, titles, strict=True)]
    return template.render(documents=views, style=Markup(style), version=__version__)


def _get_sections(view: View) -> list[tuple[Section, list[Element]]]:
    """Return a view's sections with parts that the templates know."""
    shown = [(section, [*filter(None, map(_simplify, parts))]) for section, parts in view.sections_for("page")]
    return [(section, parts) for section, parts in shown if parts]


def _simplify(part: Element) -> Element | None:
    match part:
        case LimitList(rows=()):
            return None  # the gate judged nothing: its reasons are in the verdict
        case LimitList(rows=rows):
            columns = ("Limit on", "A", "B", "Worse by [95% CI]", "Limit", "Verdict")
            cells = [(item.name, item.a, item.b, item.change, item.limit, item.verdict) for item in rows]
            return Table(part.caption, columns, tuple(cells), frozenset(range(1, 5)))
        case Changes():
            return Paragraph(part.sentence("→"))
    return part


def _moment(text: str) -> str:
    """Format `2026-11-20T12:48:54Z` as `20 Nov 2026, 12:48 UTC`; return anything else unchanged."""
    try:
        moment = datetime.fromisoformat(text)
        return f"{moment.astimezone(UTC):%d %b %Y, %H:%M} UTC" if moment.tzinfo else text
    except (ValueError, OverflowError):
        return text


def _code(text: str) -> Markup:
    """Turn text between backticks into code; all of it is escaped."""
    parts = str(_printable(text)).split("`")
    whole = [
        Markup("<code>{}</code>").format(part) if number % 2 else escape(part) for number, part in enumerate(parts)
    ]
    return Markup("").join(whole) if len(parts) % 2 else escape(text)


def _printable(value: object) -> object:
    """Remove control characters and those that change the direction of writing."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return "".join(
        letter if letter.isprintable() or letter == "\n" else "\N{REPLACEMENT CHARACTER}" for letter in value
    )
