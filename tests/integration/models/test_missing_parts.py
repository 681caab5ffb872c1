"""A checkpoint that lacks weights is one error that names them, for every family of ours and vLLM's own models.

A whole part is missed before a process starts, single weights by the loader.
"""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.answers import answer_of
from support.in_process import run_here
from support.omni_process import run_omni
from support.samples import sample
from support.tiny_models import llama

from omni_cli.checkpoints.resolve import resolve_model
from omni_cli.checkpoints.shards import find_fault
from omni_cli.config.families import families
from omni_cli.config.loader import load_profile
from omni_cli.core.errors import CheckpointError
from omni_cli.engine.checkpoint_fit import check_fit

# Families whose model classes are ours name the weights that these load.
PROFILES = {
    "qwen2_5_omni": "tiny-omni",
    "qwen3_omni": "tiny-qwen3-omni",
    "glm_image": "tiny-glm-image",
    "csm": "tiny-csm",
    "vibevoice": "tiny-vibevoice",
    "higgs_audio": "tiny-higgs-audio",
    "qwen3_tts": "tiny-qwen3-tts",
}
# Its code2wav reads a folder of its own, which the copies with one weight less do not lead to.
OF_ONE_FOLDER = [profile for profile in PROFILES.values() if profile != "tiny-qwen3-tts"]
# Of vLLM's own classes: tied embeddings, experts, images, sound.
MODELS = ("llama", "gemma3", "qwen3_moe", "idefics3", "qwen2_audio")
# The codec only decodes, another part reads the table of text embeddings, and CSM's table of codes is there twice.
UNUSED = {
    "tiny-csm": (
        "codec_model.encoder",
        "codec_model.downsample.",
        "embed_text_tokens.",
        "backbone_model.embed_tokens.embed_audio_tokens.",
        "depth_decoder.model.embed_tokens.",
    ),
    "tiny-higgs-audio": ("model.embed_tokens.",),
}


def without(folder: Path, part: str, broken: Path) -> Path:
    """A copy of a checkpoint without weights whose names begin with `part`."""
    shutil.copytree(folder, broken, copy_function=os.link)
    component, _, prefix = part.rpartition("/")
    for file in (broken / component).glob("*.safetensors"):
        weights = load_file(file)
        kept = {name: weight for name, weight in weights.items() if not name.startswith(prefix)}
        assert 0 < len(kept) < len(weights), part
        file.unlink()
        save_file(kept, file, metadata={"format": "pt"})
    return broken


def test_all_families_with_our_classes_are_listed() -> None:
    # The class for Qwen3-ASR is vLLM's, which loads its weights, with hooks.
    assert {name for name, family in families().items() if family.models} == {
        *PROFILES,
        "transcription",
        "listener",
    }


@pytest.mark.parametrize("name", PROFILES)
def test_each_part_is_named(name: str, tmp_path: Path) -> None:
    config = load_profile(PROFILES[name])
    folder = Path(resolve_model(config.model))
    check_fit(config, folder)
    roles = families()[name].roles
    assert all(role.needed_weights for role in roles)
    for role in roles:
        for number, part in enumerate(role.needed_weights):
            broken = without(folder, part, tmp_path / f"{role.name}-{number}")
            with pytest.raises(CheckpointError) as caught:
                check_fit(config, broken)
            component, _, prefix = part.rpartition("/")
            assert caught.value.message == (
                f"`{broken / component}` has no weights called `{prefix}*`, which stage `{role.name}` needs"
            )


def test_it_is_an_error_of_the_command(tmp_path: Path) -> None:
    broken = without(Path(resolve_model("builtin:tiny-qwen3-omni")), "code2wav.", tmp_path / "broken")
    ended = run_here(tmp_path, "generate", "--model", str(broken), "hello")
    assert ended.code == 2, ended.err
    assert "has no weights called `code2wav.*`, which stage `code2wav` needs" in " ".join(ended.err.split())
    assert not ended.leftovers and not ended.started_others


# How many of the kinds of weights are tried: nightly all of them, otherwise one of so many.
@pytest.mark.parametrize("every", sample([37, 1], [37]))
def test_each_weight_is_named(every: int, tmp_path: Path) -> None:
    task = {"profiles": OF_ONE_FOLDER, "models": MODELS, "every": every}
    answers = answer_of("missing_weights", task, tmp_path, timeout_s=max(240, 3600 / every))
    assert sum(len(stages) for stages in answers.values()) == 12 + len(MODELS)
    for name, stages in answers.items():
        for weight, (missing, larger, *nan) in itertools.chain.from_iterable(map(dict.items, stages.values())):
            assert nan in ([], [None]), "what a checkpoint has is not missing"
            if weight.startswith(UNUSED.get(name, ())):
                assert missing is None, weight
                continue
            assert missing is not None, weight
            assert missing.endswith(f" lacks 1 of its weights: {weight}")
            if name not in MODELS:
                assert larger is not None, weight
                assert f" has weights of another model: {weight} has the shape (" in larger


def test_pickled_weights_have_their_names_as_well(tmp_path: Path) -> None:
    folder = llama(tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    assert find_fault(folder, (), "", is_loaded=False) is None
    name = "model.layers.1.mlp.up_proj.weight"
    torch.save({other: weight for other, weight in weights.items() if other != name}, folder / "pytorch_model.bin")
    fault = find_fault(folder, (), "", is_loaded=False)
    assert fault is not None
    assert fault.message.endswith(f"lacks 1 of its weights: {name}")


def test_weights_of_quantized_models_have_vllms_names(tmp_path: Path) -> None:
    answers = answer_of("missing_weights", {"profiles": [], "models": ["llama_int8"], "every": 1}, tmp_path)
    errors = {weight: missing for weight, (missing, *_) in answers["llama_int8"]["model"].items()}
    # vLLM does not report missing norms of quantized models.
    assert {weight for weight, error in errors.items() if error is None} == {
        "model.layers.1.input_layernorm.weight",
        "model.layers.1.post_attention_layernorm.weight",
        "model.norm.weight",
    }
    for weight in ("weight", "weight_scale"):
        error = errors[f"model.layers.1.mlp.up_proj.{weight}"] or ""
        assert error.startswith("vLLM finds no weights in `")
        assert error.endswith(f"` for 1 of its parameters: model.layers.1.mlp.gate_up_proj.{weight}")


# Ranks in other processes do not pass their exceptions on.
RANKS = ("--set", "thinker.tensor_parallel_size=2", "--set", "thinker.distributed_executor_backend=mp")


@pytest.mark.parametrize("ranks", [(), pytest.param(RANKS, marks=pytest.mark.nightly)])
def test_a_missing_weight_is_an_error_of_the_command(ranks: tuple[str, ...], tmp_path: Path) -> None:
    name = "thinker.model.layers.1.mlp.up_proj.weight"
    broken = without(Path(resolve_model("builtin:tiny-omni")), name, tmp_path / "broken")
    given = ("--profile", "tiny-omni", "--model", str(broken), "--modalities", "text", *ranks)
    ended = run_omni(tmp_path, "generate", *given, "hello")
    ended.check_error(2, f"`{broken}` lacks 1 of its weights: {name}")
    assert not ended.output_files


def test_another_failure_of_loading_is_the_error_whatever_weights_are_missing(tmp_path: Path) -> None:
    name = "thinker.model.layers.1.mlp.up_proj.weight"
    broken = without(Path(resolve_model("builtin:tiny-omni")), name, tmp_path / "broken")
    given = ("--profile", "tiny-omni", "--model", str(broken), "--modalities", "text")
    ended = run_omni(tmp_path, "generate", *given, "--set", "thinker.max_model_len=10000000", "hello")
    ended.check_error(6, "`max_model_len` (10000000) is more than the model's")
