"""A program that starts an engine outside of `if __name__ == "__main__":` ends with a hint."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
import asyncio
from omni_cli.config.loader import load_profile
from omni_cli.engine.omni_llm import OmniLLM

asyncio.run(OmniLLM(load_profile("tiny-image")).start())
"""


def test_the_hint_is_in_the_traceback(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    ended = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 1
    *_, error, hint = ended.stderr.splitlines()
    assert "ended unexpectedly" in error
    assert hint.startswith("hint: start the engine below `if __name__ == '__main__':`")
