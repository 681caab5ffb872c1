"""Faults of every kind at every point of a stage's life: the right error, whole files, nothing left behind.

Each run is a real one, with the fault planted in the stage's own process. `make test` plants some of them,
`make test-all` every kind at every point, which takes about a quarter of an hour.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from pathlib import Path

import pytest
from PIL import Image
from support.omni_process import SHORT, Ended, run_omni
from support.samples import sample

pytestmark = pytest.mark.slow

FAILED = 6
KINDS = ("raise", "memory", "full", "kill", "exit", "hang")
# What the error says of each.
WORDS = {
    "raise": "planted",
    "memory": "not enough memory",
    "full": "No space left on device",
    "kill": "its process was killed (SIGKILL)",
    "exit": "its process ended unexpectedly (exit code 7)",
    "hang": "no progress on its requests for",
}
LOAD_POINTS = [("image", "load"), ("image", "load weights"), ("thinker", "load weights"), ("token2wav", "warm-up")]
IMAGE_POINTS = [
    "take input",
    "engine step",
    "text encode",
    "denoising step 2",
    "vae decode",
    "output copy",
    "send reports",
]
CHAIN_POINTS = [
    ("thinker", "take input"),
    ("thinker", "engine step"),
    ("thinker", "model forward"),
    ("thinker", "make stage_output"),
    ("talker", "take input"),
    ("talker", "sampling"),
    ("token2wav", "model forward"),
    ("token2wav", "send reports"),
]


def table(points: list, some: list) -> list:
    return sample(list(itertools.product(points, KINDS)), some)


def run(folder: Path, fault: str, *arguments: str, when: Path | None = None) -> Ended:
    environment = {"PLANTED_FAULT": fault}
    if when is not None:
        environment["PLANTED_WHEN"] = str(when)
    return run_omni(folder, "generate", *arguments, "--json", planted="planted_faults", environment=environment)


def check_clean(ended: Ended, kind: str) -> None:
    """Nothing is left except the file named by a hung stage's error, with the stage's stacks."""
    if kind == "hang":
        path = Path(re.search(r"the stacks of its threads are in (\S+);", ended.err)[1])
        assert "in never_returns" in path.read_text()
        assert ended.leftovers == (f"temporary {path.name}",)
        ended = dataclasses.replace(ended, leftovers=())
    ended.check_clean()


@pytest.mark.parametrize(
    ("point", "kind"),
    table(LOAD_POINTS, [(LOAD_POINTS[0], "raise"), (LOAD_POINTS[1], "memory")]),
)
def test_while_loading(folder: Path, point: tuple[str, str], kind: str) -> None:
    stage, place = point
    profile = "tiny-image" if stage == "image" else "tiny-omni"
    # Long enough that a busy machine has come to the fault.
    limit = ("--set", f"{stage}.load_timeout_s=30") if kind == "hang" else ()
    ended = run(folder, f"{kind}@{place}@{stage}", "hi", "--profile", profile, *limit)
    words = "not loaded after" if kind == "hang" else WORDS[kind]
    ended.check_error(FAILED, f"stage `{stage}`", words)
    check_clean(ended, kind)
    assert ended.output_files == ()


@pytest.mark.parametrize(
    ("place", "kind"),
    table(IMAGE_POINTS, [("denoising step 2", "hang")]),
)
def test_images(folder: Path, place: str, kind: str) -> None:
    """In the middle of many images: finished ones are whole, the others report the failure."""
    lines = [{"request_id": str(number), "prompt": "a cat", "seed": number} for number in range(24)]
    (folder / "requests.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = ("--set", "image.step_timeout_s=3", "--set", "image.max_num_seqs=4")
    arguments = ("--requests", "requests.jsonl", "--profile", "tiny-image", *settings)
    # Input is taken before there is a first image.
    when = folder / "out" / "0.png" if place != "take input" else None
    ended = run(folder, f"{kind}@{place}@image", *arguments, when=when)
    assert ended.code == FAILED, ended.err
    check_clean(ended, kind)
    results = {result["request_id"]: result for result in ended.document["results"]}
    assert len(results) == len(lines)
    done = {name for name, result in results.items() if result["status"] == "ok"}
    assert {f"{name}.png" for name in done} == set(ended.output_files)
    assert done and "0" in done if when is not None else "0" not in done
    for name in done:
        with Image.open(folder / "out" / f"{name}.png") as image:
            assert image.convert("RGB").size == (64, 64)
    for name in results.keys() - done:
        assert WORDS[kind] in results[name]["message"], name


@pytest.mark.parametrize(
    ("point", "kind"),
    table(CHAIN_POINTS, [(CHAIN_POINTS[4], "kill")]),
)
def test_a_chain(folder: Path, point: tuple[str, str], kind: str) -> None:
    """One request on its way through three stages: its result has the outputs of earlier stages."""
    stage, place = point
    limit = ("--set", f"{stage}.step_timeout_s=3") if kind == "hang" else ()
    ended = run(folder, f"{kind}@{place}@{stage}", "hi", *SHORT, *limit)
    assert ended.code == FAILED, ended.err
    check_clean(ended, kind)
    (result,) = ended.document["results"]
    assert result["status"] == "error" and f"`{stage}`" in result["message"] and WORDS[kind] in result["message"]
    assert [output["type"] for output in result["outputs"]] == ([] if stage == "thinker" else ["text"])
    assert ended.output_files == ()
