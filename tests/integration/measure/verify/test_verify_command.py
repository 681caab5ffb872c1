"""What `omni verify` says beside its rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.omni_process import run_omni

pytestmark = pytest.mark.slow


def test_an_argument_that_the_pipeline_ignores_is_named(tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_text('{"prompt": "a", "guidance_scale": 7}')
    words = ("--requests", "one.jsonl", "--vary", "execution=eager,compile", "--json")
    ended = run_omni(tmp_path, "verify", "--profile", "tiny-image", *words)
    assert ended.code == 0, ended.err
    (note,) = ended.document["notes"]
    assert "guidance_scale is passed as 7.0, but ignored" in note and ended.err.count(f"warning: {note}") == 1
