"""Small helpers for text that every layer may use."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def suggest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return `did you mean ...?` for the closest known word; None if none has a similarity of `cutoff`, 0 to 1.

    The dashes of options are no similarity. A word of one or two letters is that of which alone it is the beginning,
    a longer one also that of which alone it is the last part.
    """
    names = {name.lstrip("-"): name for name in known}
    bare = word[:100].lstrip("-")
    near = get_close_matches(bare, names, n=1, cutoff=cutoff) if len(bare) > 2 else []
    parts = [name for name in names if (name.endswith(f"-{bare}") if len(bare) > 2 else name.startswith(bare))]
    return next((f"did you mean `{names[name]}`?" for name in near or parts * (len(parts) == 1)), None)


def visible(text: str, limit: int = 200) -> str:
    """Escape invisible characters of `text` and cut it to `limit` characters, so that it is safe on a terminal."""
    shown = text[:limit]
    if not shown.isprintable():
        shown = "".join(visible_character(character) for character in shown)
    return shown + "..." if len(text) > limit else shown


def visible_character(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
