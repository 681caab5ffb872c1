"""`builtin:tiny-csm`: the same bytes each time, and whole; a folder that lacks a part is one error that names it."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
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
    ("part", "stage"),
    [
        ("backbone_model.", "backbone"),
        ("depth_decoder.", "backbone"),
        ("embed_text_tokens.", "backbone"),
        ("codec_model.", "codec"),
    ],
)
def test_a_checkpoint_without_a_part_names_it(folder: Path, tmp_path: Path, part: str, stage: str) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    weights = load_file(broken / "model.safetensors")
    kept = {name: weight for name, weight in weights.items() if not name.startswith(part)}
    assert 0 < len(kept) < len(weights)
    save_file(kept, broken / "model.safetensors", metadata={"format": "pt"})
    ended = run_here(tmp_path, "generate", "-p", "tiny-csm", "--model", str(broken), "hello")
    assert ended.code == 2, ended.err
    assert f"has no weights called `{part}*`, which stage `{stage}` needs" in " ".join(ended.err.split())
    assert not ended.leftovers


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
