"""`builtin:tiny-higgs-audio`: complete, and the same bytes each time; the codec may be in another folder."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from support.in_process import run_here

from omni_cli.checkpoints.build import build_folder
from omni_cli.checkpoints.files import check_checkpoint, read_model_kind
from omni_cli.core.errors import CheckpointError
from omni_cli.models.higgs_audio.prompts import load_tokenizer, tokenizer_folder

WEIGHTS = {"model.safetensors", "audio_tokenizer/model.safetensors"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built") / "tiny-higgs-audio"
    assert build_folder("tiny-higgs-audio", folder, seed=0)
    return folder


def digests(folder: Path) -> dict[str, str]:
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def test_a_seed_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    check_checkpoint(folder)
    assert read_model_kind(folder) == "HiggsAudioV2ForConditionalGeneration"
    assert build_folder("tiny-higgs-audio", tmp_path / "again", seed=0)
    assert digests(tmp_path / "again") == digests(folder)
    assert build_folder("tiny-higgs-audio", tmp_path / "other", seed=1)
    assert {name for name, digest in digests(tmp_path / "other").items() if digest != digests(folder)[name]} == WEIGHTS


def test_the_codec_may_be_elsewhere(folder: Path, tmp_path: Path) -> None:
    moved, codec = tmp_path / "moved", tmp_path / "codec"
    shutil.copytree(folder, moved)
    shutil.move(moved / "audio_tokenizer", codec)
    settings = json.loads((moved / "processor_config.json").read_text())
    settings["audio_tokenizer"]["audio_tokenizer_name_or_path"] = str(codec)
    (moved / "processor_config.json").write_text(json.dumps(settings))
    assert tokenizer_folder(moved) == codec
    assert load_tokenizer(moved).config.num_quantizers == 8


@pytest.mark.parametrize(
    ("named", "message"),
    [(None, "names no audio tokenizer"), ("nowhere/to/be/found", "no such model folder: `nowhere/to/be/found`")],
)
def test_a_codec_that_is_nowhere(folder: Path, tmp_path: Path, named: str | None, message: str) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    settings = json.loads((broken / "processor_config.json").read_text())
    settings["audio_tokenizer"] = {} if named is None else {"audio_tokenizer_name_or_path": named}
    (broken / "processor_config.json").write_text(json.dumps(settings))
    with pytest.raises(CheckpointError, match=message):
        tokenizer_folder(broken)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("hello", "--image", "x.png"), "`--image` has no effect with profile `tiny-higgs-audio`, which makes audio"),
        (("hello", "--modalities", "text"), "profile `tiny-higgs-audio` makes audio, not `text`"),
        (("hello", "--set", "codec.execution=compile"), "a codec decoder has no `execution: compile`"),
    ],
)
def test_options_without_effect_are_refused(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    ended = run_here(tmp_path, "generate", "-p", "tiny-higgs-audio", *arguments)
    assert ended.code in (2, 6) and message in " ".join(ended.err.split()), ended.err
