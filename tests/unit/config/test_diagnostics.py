"""Files that are not profiles, and the order and format of several mistakes."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from support.profile_text import GOOD, mistakes, write

from omni_cli.config.diagnostics import InvalidProfileError
from omni_cli.config.loader import check_profile, load_profile

BYTES = {
    "empty": (b"", ["1:1: the profile is empty (see `omni profiles show tiny-omni` for one)"]),
    "a list": (
        b"- 1\n",
        ["1:1 '-': the profile is not a mapping (see `omni profiles show tiny-omni` for one)"],
    ),
    "a word": (
        b"abc\n",
        ["1:1 'abc': the profile is not a mapping (see `omni profiles show tiny-omni` for one)"],
    ),
    "not UTF-8": (b"a: 1\nb: \xff\n", ["2:4 '\ufffd': not UTF-8 text (save the file as UTF-8)"]),
    "UTF-16": ("a: 1\n".encode("utf-16"), ["1:1 '\ufffd': not UTF-8 text (save the file as UTF-8)"]),
    "NUL": (b"a: \x00\n", ["1:4 '\\x00': the character U+0000 is not allowed in YAML (remove it)"]),
    "escape code": (
        b"a: \x1b[31m\n",
        ["1:4 '\\x1b': the character U+001B is not allowed in YAML (remove it)"],
    ),
    "a duplicate key before a syntax error": (
        b"a: 1\na: 2\nb: [\n",
        [
            "2:1 'a': duplicate key `a` (the first one is on line 1)",
            "3:5 '': not valid YAML: expected the node content, but found '<stream end>' while parsing a flow node",
        ],
    ),
    "large": (b"# " + b"x" * 70_000, ["1:1: larger than 64 KiB, the maximum for a profile"]),
}


@pytest.mark.parametrize(("content", "expected"), BYTES.values(), ids=BYTES)
def test_a_file_that_is_not_a_profile(tmp_path: Path, content: bytes, expected: list[str]) -> None:
    assert mistakes(tmp_path, content) == expected


def test_a_byte_order_mark_and_windows_line_ends_are_fine(tmp_path: Path) -> None:
    assert mistakes(tmp_path, b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode()) == []
    broken = GOOD.replace("dtype: float32", "dtype: float8").replace("\n", "\r\n")
    assert [found.split(":")[:2] for found in mistakes(tmp_path, broken)] == [["4", "8 'float8'"]]


def test_a_billion_laughs_is_refused_at_once(tmp_path: Path) -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    found = mistakes(tmp_path, "\n".join(levels))
    assert any("an anchor (`&a0`) is not allowed" in item for item in found)
    assert any("an alias (`*a0`) is not allowed" in item for item in found)


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    found = mistakes(tmp_path, "stages: " + "[" * 5000)
    assert len(found) == 1
    assert "nested more than 20 levels deep" in found[0]


def test_all_mistakes_come_at_once_in_source_order(tmp_path: Path) -> None:
    text = (
        GOOD.replace("version: 1", "version: '1'")
        .replace("dtype: float32", "dtype: float31")
        .replace("    kind: ar\n", "    kind: arr\n    max_num_seqs: 0\n    zz: 1\n")
        .replace("input: thinker", "input: nobody")
    )
    places = [found.split(" ")[0] for found in mistakes(tmp_path, text)]
    assert places == ["1:10", "4:8", "7:11", "8:19", "9:5", "14:12"]


def test_the_whole_text_of_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(
        tmp_path,
        GOOD.replace("    kind: ar\n", "    kind: ar\n    gpu_memory_utilisation: 0.8\n    output_copy: asink\n"),
    )
    with pytest.raises(InvalidProfileError) as caught:
        load_profile("p.yaml")
    assert caught.value.message == textwrap.dedent(
        """\
        p.yaml:8:5: unknown key `gpu_memory_utilisation` in stage `thinker`
          |
        8 |     gpu_memory_utilisation: 0.8
          |     ^^^^^^^^^^^^^^^^^^^^^^
        hint: did you mean `gpu_memory_utilization`?

        error: p.yaml:9:18: invalid value for `output_copy`: expected one of async, sync
          |
        9 |     output_copy: asink
          |                  ^^^^^
        hint: did you mean `async`?"""
    )


def test_the_caret_is_under_wide_characters_and_in_long_lines(tmp_path: Path) -> None:
    wide = GOOD.replace("sampling: {temperature: 0.0}", "sampling: {stop: 日本, top_k: x}")
    lines = check_profile(write(tmp_path, wide))[0].render().split("\n")
    assert lines[2].endswith("{stop: 日本, top_k: x}")
    # Two columns for each of the two wide characters.
    assert lines[3].index("^") == lines[2].index("x}") + 2
    long = GOOD.replace("sampling: {temperature: 0.0}", "sampling: {stop: '" + "a" * 900 + "', top_k: x}")
    lines = check_profile(write(tmp_path, long))[0].render().split("\n")
    assert max(map(len, lines)) < 200
    assert lines[2][lines[3].index("^")] == "x"


def test_control_characters_of_a_value_never_reach_the_terminal(tmp_path: Path) -> None:
    text = GOOD.replace("dtype:", '"k\\e[2J\\u202E": 1\ndtype:')
    rendered = check_profile(write(tmp_path, text))[0].render()
    assert "unknown key `k\\x1b[2J\\u202e`" in rendered
    assert "\x1b" not in rendered
    assert "\u202e" not in rendered
