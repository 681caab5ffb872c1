"""Suggestions: near words only."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.main import get_group

from omni_cli.cli import app
from omni_cli.core.text import suggest
from omni_cli.records.metrics import METRICS
from omni_cli.requests.fields import FIELDS


def _options(node: Any) -> set[str]:
    children = [node.get_command(None, name) for name in node.list_commands(None)] if hasattr(node, "commands") else []
    own = {name for param in getattr(node, "params", ()) for name in param.opts}
    return own.union(*map(_options, children))


KNOWN = sorted({*_options(get_group(app.app)), *FIELDS, *METRICS, *app._Commands.lazy_commands})


# No list of names has both an option and a word that is the same without dashes.
NAMES = st.lists(st.sampled_from(KNOWN), unique_by=lambda name: name.lstrip("-"))


@given(st.text("abcdefghijklmnopqrstuvwxyz0-_", max_size=2), NAMES)
def test_a_word_of_two_letters_is_only_the_beginning_of_one(word: str, known: list[str]) -> None:
    begun = [name for name in known if name.lstrip("-").startswith(word.lstrip("-"))]
    assert suggest(word, known) == (f"did you mean `{begun[0]}`?" if len(begun) == 1 else None)


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [
        ("--metric", ["--strict", "--timeout"], None),
        ("--num-iter", ["--num-iters", "--num-requests"], "--num-iters"),
        ("--concurency", ["--concurrency"], "--concurrency"),
        ("-c", ["--concurrency", "-q"], "--concurrency"),
        ("-n", ["--num-iters", "--num-requests"], None),
        ("a", ["e2e_s", "ttft_s"], None),
        ("--iters", ["--num-iters", "--num-iters-warmup"], "--num-iters"),
        ("--rate", ["--request-rate", "--sample-rate"], None),
        ("--rate", ["--operate"], None),
    ],
)
def test_dashes_make_no_words_alike(word: str, known: list[str], meant: str | None) -> None:
    assert suggest(word, known, cutoff=0.75) == (meant and f"did you mean `{meant}`?")
