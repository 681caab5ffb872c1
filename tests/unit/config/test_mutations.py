"""Loading a damaged profile gives a configuration or a `ProfileError`, and nothing else."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omni_cli.config.bundled import bundled_profiles
from omni_cli.config.diagnostics import InvalidProfileError
from omni_cli.config.loader import load_profile
from omni_cli.core.errors import ProfileError

ORIGINALS = [path.read_bytes() for path in bundled_profiles().values()]
PIECES = [
    b"", b" ", b"\n", b"\t", b"\r", b":", b": ", b"- ", b"? ", b"{", b"}", b"[", b"]", b",", b"&a ", b"*a",
    b"!!x ", b"!<x> ", b"<<: ", b"'", b'"', b'"\\U00110000"', b'"\\ud800"', b'"\\e"', b"|", b">", b"#", b"%",
    b"@", b"`", b"---\n", b"...\n", b"%YAML 1.1\n---\n", b"null", b"~", b"true", b"no", b"0", b"-1", b"1e999",
    b".nan", b"9" * 60, b"\x00", b"\x85", b"\xff", b"\xe2\x80\xa8", "日".encode(), b"kind: ar",
    b"kind: diffusion", b"input: thinker", b"stages:", b"thinker", b"sampling: {}", b"call: {}", b"version",
    b"\xef\xbb\xbf",
]  # fmt: skip
PIECE = st.sampled_from(PIECES) | st.binary(max_size=4)


@st.composite
def mutated_profiles(draw: st.DrawFn) -> bytes:
    """A bundled profile with a few cuts, insertions, and copied or lost lines."""
    content = draw(st.sampled_from(ORIGINALS))
    for _ in range(draw(st.integers(1, 5))):
        start = draw(st.integers(0, len(content)))
        length = draw(st.integers(0, 12))
        how = draw(st.sampled_from(["replace", "word", "line", "copy"]))
        if how == "replace":
            content = content[:start] + draw(PIECE) + content[start + length :]
        elif how == "word":
            words = list(re.finditer(rb"[\w.-]+", content)) or [re.match(b"", content)]
            word = draw(st.sampled_from(words))
            content = content[: word.start()] + draw(PIECE) + content[word.end() :]
        else:
            lines = content.splitlines(keepends=True) or [b""]
            index = draw(st.integers(0, len(lines) - 1))
            lines[index : index + 1] = [] if how == "line" else [lines[index], lines[index]]
            content = b"".join(lines)
    return content


def load(path: str, *overrides: str) -> None:
    try:
        load_profile(path, overrides)
    except InvalidProfileError as error:
        assert error.diagnostics
        rendered = error.message
        assert "\x1b" not in rendered
        for item in error.diagnostics:
            lines = item.location.source.lines
            assert item.message
            assert not lines or 0 <= item.location.line < len(lines)
            assert not lines or 0 <= item.location.column <= len(lines[item.location.line])
    except ProfileError as error:
        assert error.message


@pytest.mark.slow
@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(content=mutated_profiles())
def test_a_mutated_profile(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "mutated.yaml"
    path.write_bytes(content)
    load(str(path))


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(content=st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode(errors="replace")))
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "bytes.yaml"
    path.write_bytes(content)
    load(str(path))


PARTS = st.sampled_from(["thinker", "talker", "stages", "sampling", "kind", "input", "model", "call", "x", "", "seed"])
VALUES = (
    PARTS
    | st.sampled_from(["null", "ar", "[a", "{a: b}", "[[1]]", "'", "&a 1", "*a", "1e999", "-1"])
    | st.text(max_size=9)
)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(PARTS, max_size=4).map(".".join), VALUES).map("=".join) | st.text(max_size=9),
        max_size=3,
    )
)
def test_any_overrides(overrides: list[str]) -> None:
    load("tiny-omni", *overrides)
