"""`builtin:tiny-csm`: complete, and the same bytes each time; options without effect are rejected."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from support.in_process import run_here

from omni_cli.checkpoints.build import build_folder
from omni_cli.checkpoints.files import check_checkpoint, read_model_kind


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built") / "tiny-csm"
    assert build_folder("tiny-csm", folder, seed=0)
    return folder


def digests(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}


def test_a_seed_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    check_checkpoint(folder)
    assert read_model_kind(folder) == "CsmForConditionalGeneration"
    assert build_folder("tiny-csm", tmp_path / "again", seed=0)
    assert digests(tmp_path / "again") == digests(folder)
    assert build_folder("tiny-csm", tmp_path / "other", seed=1)
    different = {name for name, digest in digests(tmp_path / "other").items() if digest != digests(folder)[name]}
    assert different == {"model.safetensors"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("hello", "--audio", "x.wav"), "`--audio` has no effect with profile `tiny-csm`, which makes audio"),
        (("hello", "--modalities", "text"), "profile `tiny-csm` makes audio, not `text`"),
    ],
)
def test_options_without_effect_are_refused(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    ended = run_here(tmp_path, "generate", "-p", "tiny-csm", *arguments)
    assert ended.code == 2 and message in " ".join(ended.err.split()), ended.err
