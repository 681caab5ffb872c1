"""The page: documents rendered by Jinja's templates, which escape everything except the drawings."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from omni_cli import __version__
from omni_cli.report.html.elements import Document


def render_page(documents: Sequence[Document]) -> str:
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
    environment.filters |= {"moment": _moment, "code": _code}
    template = environment.get_template("page.html")
    return template.render(documents=documents, style=Markup(style), version=__version__)


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
