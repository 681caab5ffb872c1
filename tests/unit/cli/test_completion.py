"""Completion of command lines, as shells ask for it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

OMNI = (sys.executable, "-m", "omni_cli")


def answer(instruction: str, words: str = "") -> str:
    """Return the answer to a shell that completes the last word of a line."""
    asked = {"_OMNI_COMPLETE": instruction, "COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    asked |= {"_TYPER_COMPLETE_ARGS": words, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    ended = subprocess.run(OMNI, env={**os.environ, **asked}, capture_output=True, text=True, check=True)
    return ended.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("words", "expected", "absent"),
    [
        ("omni ben", "bench", "generate"),
        ("omni bench --vae", "", "--vary"),
        ("omni bench --var", "--vary", "--batch-size"),
        ("omni models pu", "pull", "remove"),
        ("omni generate --profile tiny-o", "tiny-omni", "tiny-image"),
    ],
)
def test_what_completes_a_word(shell: str, words: str, expected: str, absent: str) -> None:
    found = answer(f"complete_{shell}", words)
    assert expected in found and absent not in found


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_asks_the_command(shell: str) -> None:
    assert f"_OMNI_COMPLETE=complete_{shell}" in answer(f"source_{shell}")
