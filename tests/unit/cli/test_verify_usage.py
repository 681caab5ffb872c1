"""Mistakes on the command line of `omni verify` are reported before anything loads or is sent."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from support.profile_text import make_config

from omni_cli.cli.app import run
from omni_cli.cli.verify.options import VerifyOptions
from omni_cli.cli.verify.run import _read_requests
from omni_cli.config.schema import ARStageConfig
from omni_cli.requests.capabilities import Capabilities

URL = "http://127.0.0.1:1"


@pytest.fixture(autouse=True)
def nothing_is_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def start(*_: object, **__: object) -> None:
        raise AssertionError("something was about to start")

    monkeypatch.setattr("aiohttp.ClientSession._request", start)
    monkeypatch.setattr("omni_cli.engine.omni_llm.OmniLLM.start", start)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--url", "server"], ["not the address of a server", "for example http://127.0.0.1:8000"]),
        (["--url", URL, "--profile", "tiny-omni"], ["`--profile` is for profiles"]),
        (["--url", URL, "--vary", "a=1,2"], ["`--vary` is for profiles"]),
        (["--url", URL, "--set", "seed=1"], ["`--set` is for profiles"]),
        (
            ["--url", URL, "--route", "speech", "--model", "somewhere"],
            ["is for the routes `chat`, `completions`, `transcriptions`"],
        ),
        (["--url", URL, "--route", "videos"], ["`videos` is not one of"]),
        (["--route", "images"], ["for servers", "add `--url URL`"]),
        (["--profile", "tiny-image", "--vary", "execution=eager"], ["a single value"]),
        (["--profile", "tiny-image", "--vary", "env.A=1,2"], ["for `omni bench`"]),
        (["--profile", "tiny-image", "--vary", "execution=eager,fast"], ["execution"]),
        (["--profile", "tiny-image", "--requests", "none.jsonl"], ["none.jsonl"]),
        (["--profile", "tiny-image", "--output-json", "none/verify.json"], ["no folder `none`"]),
        (["--profile", "tiny-image", "--junit", "."], ["it is a folder"]),
        (["--profile", "tiny-qwen3-tts", "--reference-python", "."], ["is no program", "`bin/python`"]),
        (
            ["--profile", "tiny-qwen3-tts", "--reference-python", sys.executable],
            ["has no package `qwen_tts`", "`make reference-qwen3-tts`"],
        ),
        (["--profile", "tiny-csm", "--reference-python", sys.executable], ["`csm` runs in omni's own Python"]),
    ],
)
def test_a_mistake_is_one_error(arguments: list[str], parts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", *arguments]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert message.startswith("error: ") and all(part in message for part in parts), message


def test_a_wrong_line_of_requests_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": "b", "image": "none.png"}\n')
    assert run(["verify", "--profile", "tiny-omni", "--requests", str(path)]) == 2
    assert "requests.jsonl:2" in capsys.readouterr().err


@pytest.mark.parametrize(("stage", "asked"), [("transcriber", True), ("listener", False)])
def test_a_sound_with_a_prompt_is_a_transcript_of_a_model_that_does_nothing_else(
    stage: str, asked: bool, tmp_path: Path
) -> None:
    """`limits` asks no transcript for a stop string, which is refused."""
    soundfile.write(tmp_path / "a.wav", np.zeros(16_000), 16_000)
    (tmp_path / "requests.jsonl").write_text('{"audio": "a.wav", "prompt": "names"}\n')
    config = make_config("one", "model", ARStageConfig.create(stage))
    options = VerifyOptions(requests=tmp_path / "requests.jsonl")
    (request,) = _read_requests(options, config, Capabilities.of(config))
    assert request.transcription.asked == asked and request.prompt == "names"
