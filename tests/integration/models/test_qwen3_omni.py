"""Checkpoints of Qwen3-Omni: the built-in one has the same bytes everywhere; the thinking variant cannot speak."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from support.in_process import run_here
from support.omni_process import run_omni
from support.qwen3_reference import Qwen3Reference
from support.reference import MAX_TOKENS

from omni_cli.checkpoints.build import build_folder
from omni_cli.checkpoints.files import check_checkpoint, read_model_kind
from omni_cli.checkpoints.resolve import resolve_model
from omni_cli.outputs import GenerateRequest

pytestmark = pytest.mark.usefixtures("one_thread")
BUILD = "import sys; from pathlib import Path; from omni_cli.checkpoints.build import build_folder; "
BUILD += "build_folder('tiny-qwen3-omni', Path(sys.argv[1]), 0)"


def digests(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}


def test_a_seed_gives_the_same_bytes_in_every_process(tmp_path: Path) -> None:
    """Another hash seed and another number of threads than here."""
    elsewhere = tmp_path / "elsewhere"
    environment = os.environ | {"PYTHONHASHSEED": "1", "OMP_NUM_THREADS": "2"}
    with subprocess.Popen([sys.executable, "-c", BUILD, str(elsewhere)], env=environment) as process:
        assert build_folder("tiny-qwen3-omni", tmp_path / "here", seed=0)
    assert process.returncode == 0
    check_checkpoint(elsewhere)
    assert read_model_kind(elsewhere) == "Qwen3OmniMoeForConditionalGeneration"
    assert digests(elsewhere) == digests(tmp_path / "here")
    assert build_folder("tiny-qwen3-omni", tmp_path / "other", seed=1)
    different = {name for name, digest in digests(tmp_path / "other").items() if digest != digests(elsewhere)[name]}
    assert different == {"model.safetensors"}


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As published: no part of the talker, neither in the weights nor in the configuration."""
    folder = tmp_path_factory.mktemp("thinking") / "model"
    shutil.copytree(resolve_model("builtin:tiny-qwen3-omni"), folder)
    weights = load_file(folder / "model.safetensors")
    kept = {name: weight for name, weight in weights.items() if name.startswith("thinker.")}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    del config["talker_config"], config["code2wav_config"]
    (folder / "config.json").write_text(json.dumps(config | {"enable_audio_output": False}))
    return folder


def test_the_thinking_variant_answers_as_transformers(thinking: Path, tmp_path: Path) -> None:
    ended = run_omni(tmp_path, "generate", "--model", str(thinking), "--max-tokens", str(MAX_TOKENS), "--json", "hello")
    assert ended.code == 0, ended.err
    (result,) = json.loads(ended.out)["results"]
    assert [stage["name"] for stage in result["stages"]] == ["thinker"]
    (text,) = result["outputs"]
    reference = Qwen3Reference(thinking)
    inputs = reference.inputs(GenerateRequest("", "hello"))
    expected = reference.model.generate(**inputs, thinker_max_new_tokens=MAX_TOKENS, thinker_do_sample=False)
    assert text["token_ids"] == expected[0, inputs["input_ids"].shape[1] :].tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--modalities", "audio"), "makes text, not `audio`"),
        (("-p", "tiny-qwen3-omni"), "has no stage `talker`: `enable_audio_output` is false in its config.json"),
    ],
)
def test_speech_of_the_thinking_variant_is_one_error(
    thinking: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    ended = run_here(tmp_path, "generate", "--model", str(thinking), *arguments, "hello")
    assert ended.code == 2 and message in " ".join(ended.err.split()), ended.err
    assert not ended.leftovers and not ended.started_others
