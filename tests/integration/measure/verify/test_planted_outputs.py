"""`omni verify` names each fault planted in a real engine, with the check that finds it and the stage that has it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.omni_process import Ended, run_omni
from support.samples import sample
from support.tiny_models import llama

from omni_cli.core.errors import ExitCode

pytestmark = pytest.mark.slow

MODEL = ("weight", "rope base", "neighbour", "lost text", "seed", "stop string", "usage")
CHAIN = (
    "thinker weight",
    "talker weight",
    "positions after an image",
    "cache without images",
    "lost audio",
    "fewer steps",
)
# By fault: the check and the stage of a row that must be different.
FOUND = {
    "weight": ("reference", "model"),
    "rope base": ("reference", "model"),
    "neighbour": ("alone = batched", "model"),
    "lost text": ("streamed = whole", "model"),
    "seed": ("seed", "model"),
    "stop string": ("limits", "model"),
    "usage": ("limits", "model"),
    "thinker weight": ("reference", "thinker"),
    "talker weight": ("reference", "talker"),
    "positions after an image": ("reference", "thinker"),
    "cache without images": ("modalities", "thinker"),
    "lost audio": ("streamed = whole", "token2wav"),
    "fewer steps": ("reference", "token2wav"),
    "vae dtype": ("reference", "image"),
}
# Faults that leave an earlier stage as it is: the rows of the reference before theirs are equal.
UNTOUCHED = {"talker weight": "thinker", "fewer steps": "talker"}
# Some checks of the planted engine itself are blind to its fault.
OTHERS_EQUAL = ("weight", "rope base", "seed", "stop string", "usage")


def requests(folder: Path, name: str) -> tuple[str, ...]:
    """Arguments for few and short requests, so that a run takes seconds."""
    if name in MODEL or name == "vae dtype":
        return ()
    image = folder / "image.png"
    from PIL import Image

    Image.new("RGB", (140, 112), "teal").save(image)
    lines: list[dict[str, Any]] = [{"prompt": "hello", "sampling": {"max_tokens": 12}}]
    if name in ("positions after an image", "cache without images"):
        lines.append({"prompt": "What is it?", "image": [str(image)], "sampling": {"max_tokens": 12}})
    path = folder / "requests.jsonl"
    path.write_text(
        "".join(json.dumps({"request_id": str(number), **line}) + "\n" for number, line in enumerate(lines))
    )
    return ("--requests", str(path), "--set", "talker.sampling.max_tokens=40")


def verify(folder: Path, name: str, model: Path) -> Ended:
    target = {**dict.fromkeys(MODEL, ("--model", str(model))), **dict.fromkeys(CHAIN, ("--profile", "tiny-omni"))}
    arguments = target.get(name, ("--profile", "tiny-image"))
    environment = {"PLANTED_OUTPUT": name}
    return run_omni(
        folder,
        "verify",
        *arguments,
        *requests(folder, name),
        "--json",
        planted="planted_outputs",
        environment=environment,
    )


def verdicts(ended: Ended) -> Mapping[tuple[str, str | None], str]:
    """The worst verdict of each check and stage."""
    rank = ("not checked", "equal", "near tie", "different")
    found: dict[tuple[str, str | None], str] = {}
    for row in ended.document["rows"]:
        key = (row["check"], row["stage"])
        found[key] = max(found.get(key, "not checked"), row["verdict"], key=rank.index)
    return found


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama(tmp_path_factory.mktemp("model") / "llama")


@pytest.mark.nightly  # a download of 68 MiB
@pytest.mark.parametrize(("name", "verdict"), [("", "equal"), ("fixed cuts", "different")])
def test_speech_that_a_join_at_fixed_cuts_loses_is_found(
    folder: Path, whisper_tiny: Path, name: str, verdict: str
) -> None:
    planted: dict[str, Any] = {"planted": "planted_outputs", "environment": {"PLANTED_OUTPUT": name}} if name else {}
    ended = run_omni(folder, "verify", "--model", str(whisper_tiny), "--json", **planted)
    assert ended.code == (ExitCode.OUTPUT_MISMATCH if name else ExitCode.OK), ended.err
    assert verdicts(ended)["coverage", "transcriber"] == verdict
    (row,) = (row for row in ended.document["rows"] if row["check"] == "coverage")
    assert row["request"] == "long speech" and "0.0 s in the reference's transcript" in row["why"]
    ended.check_clean()


@pytest.mark.parametrize("name", sample(tuple(FOUND), ("weight", "neighbour", "talker weight", "vae dtype")))
def test_a_planted_fault_is_named_with_its_stage(folder: Path, model: Path, name: str) -> None:
    ended = verify(folder, name, model)
    assert ended.code == ExitCode.OUTPUT_MISMATCH, ended.err
    found = verdicts(ended)
    assert found[FOUND[name]] == "different", found
    if name in UNTOUCHED:
        assert found["reference", UNTOUCHED[name]] in ("equal", "near tie"), found
    if name in OTHERS_EQUAL:
        assert [key for key, verdict in found.items() if verdict == "different"] == [FOUND[name]], found
    ended.check_clean()
