"""Notes of `omni verify` beside its rows, and answers that its default requests lack."""

from __future__ import annotations

import json
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


@pytest.mark.nightly
def test_speech_of_an_answer_that_a_stop_string_cut_is_the_references(tmp_path: Path) -> None:
    request = {"prompt": "Tell me about the rain.", "sampling": {"max_tokens": 30, "stop": ["lx "]}}
    (tmp_path / "one.jsonl").write_text(json.dumps(request))
    words = ("--requests", "one.jsonl", "--set", "talker.sampling.max_tokens=40", "--json")
    ended = run_omni(tmp_path, "verify", "--profile", "tiny-omni", *words)
    rows = {(row["check"], row["stage"]): row["verdict"] for row in ended.document["rows"] if row["mode"] is None}
    assert ended.code == 0 and rows["reference", "talker"] == rows["streamed = whole", "talker"] == "equal"
