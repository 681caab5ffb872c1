"""LoRA adapters of pipelines: images are to the bit those of plain diffusers, whatever adapters other requests have."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline
from peft import LoraConfig, get_peft_model_state_dict
from PIL import Image
from safetensors.torch import load_file, save_file
from support.omni_process import Ended, run_omni
from support.tiny_pipelines.build import TinyPipeline, build, part

from omni_cli.backends.diffusers.executor import DiffusersPipelineExecutor
from omni_cli.backends.diffusers.requests import DiffusionRequest
from omni_cli.checkpoints.resolve import resolve_model
from omni_cli.config.schema import DiffusionStageConfig

PROMPT, SEED, SIZE, STEPS = "a red cube", 3, 64, 3
WEIGHTS = "pytorch_lora_weights.safetensors"
# As names of adapters, `half` and `to` are those of methods of modules.
WANTED = {"warm": ("warm", 1.0), "half": ("warm", 0.5), "to": ("cold", 1.0), None: (None, 1.0)}


@pytest.fixture(scope="module")
def folder() -> Path:
    return Path(resolve_model("builtin:tiny-image"))


@pytest.fixture(scope="module")
def adapters(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: save(folder, tmp_path_factory.mktemp(name), seed) for seed, name in enumerate(("warm", "cold"))}


def save(folder: Path, adapter: Path, seed: int) -> Path:
    pipeline = DiffusionPipeline.from_pretrained(folder)
    torch.manual_seed(seed)
    modules = ["to_q", "to_v", "to_out.0", "add_v_proj"]
    config = LoraConfig(r=4, lora_alpha=8, target_modules=modules, init_lora_weights=False)
    pipeline.transformer.add_adapter(config)
    state = get_peft_model_state_dict(pipeline.transformer)
    type(pipeline).save_lora_weights(adapter, transformer_lora_layers=state)
    return adapter


def plain(folder: Path, adapter: Path | None, scale: float) -> np.ndarray:
    pipeline = DiffusionPipeline.from_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    if adapter is not None:
        pipeline.load_lora_weights(adapter, adapter_name="own")
        pipeline.set_adapters(["own"], [scale])
    generator = torch.Generator("cpu").manual_seed(SEED)
    output = pipeline(PROMPT, num_inference_steps=STEPS, height=SIZE, width=SIZE, generator=generator)
    return np.asarray(output.images[0])


def generate(folder: Path, *arguments: str) -> Ended:
    size = ("--height", str(SIZE), "--width", str(SIZE), "--num-inference-steps", str(STEPS), "--seed", str(SEED))
    folder.mkdir(exist_ok=True)
    return run_omni(folder, "generate", *arguments, *size, "--json", "-q")


def pixels(result: dict[str, Any], folder: Path) -> np.ndarray:
    return np.asarray(Image.open(folder / result["outputs"][0]["path"]))


def test_images_are_those_of_plain_diffusers(folder: Path, adapters: dict[str, Path], tmp_path: Path) -> None:
    names = [*WANTED, "half", None, "warm"]
    lines = [json.dumps({"prompt": PROMPT, "lora": name}) for name in names]
    (tmp_path / "requests.jsonl").write_text("\n".join([*lines, json.dumps({"prompt": PROMPT})]))
    options = [f"--lora={name}={adapters[own]}@{scale:g}" for name, (own, scale) in WANTED.items() if own and name]
    ended = generate(tmp_path, "-p", "tiny-image", *options, "--requests", str(tmp_path / "requests.jsonl"))
    results = ended.document["results"]
    expected = {name: plain(folder, adapters.get(own or ""), scale) for name, (own, scale) in WANTED.items()}
    for name, result in zip([*names, None], results, strict=True):
        np.testing.assert_array_equal(pixels(result, tmp_path), expected[name], err_msg=str(name))
    images = [image.tobytes() for image in expected.values()]
    assert len(set(images)) == len(images)
    assert list(results[0]["stages"][0]["effective"]["lora"]) == ["warm", "half", "to"]


def test_the_scale_of_a_request_ends_with_it(folder: Path, adapters: dict[str, Path], tmp_path: Path) -> None:
    """diffusers leaves an adapter at weight 1 after a call with scale 0."""
    scales = [None, 0, None, 0.5, None]
    lines = [
        {"prompt": PROMPT} | ({} if scale is None else {"arg": {"attention_kwargs": {"scale": scale}}})
        for scale in scales
    ]
    (tmp_path / "requests.jsonl").write_text("\n".join(map(json.dumps, lines)))
    options = ("--lora", f"half={adapters['warm']}@0.5", "--requests", str(tmp_path / "requests.jsonl"))
    ended = generate(tmp_path, "-p", "tiny-image", *options)
    half, base, quarter = (plain(folder, adapters["warm"], weight) for weight in (0.5, 0.0, 0.25))
    expected = [half, base, half, quarter, half]
    for scale, image, result in zip(scales, expected, ended.document["results"], strict=True):
        np.testing.assert_array_equal(pixels(result, tmp_path), image, err_msg=str(scale))


@pytest.mark.parametrize("compiler", ["eager", pytest.param("inductor", marks=pytest.mark.nightly)])
def test_compiled_steps_take_adapters(
    compiler: str, folder: Path, adapters: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traced, images are the same to the bit; a compiler of kernels rounds otherwise.

    Each adapter has one program: in inference mode, inputs that are views of other tensors are like those that are not.
    """
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=compiler))
    torch.compiler.reset()
    lora = {name: f"{adapters[own]}@{scale:g}" for name, (own, scale) in WANTED.items() if own and name}
    keys = {"num_inference_steps": STEPS, "height": SIZE, "width": SIZE, "execution": "compile", "lora": lora}
    with torch._dynamo.config.patch(recompile_limit=1):  # the limit is for each adapter
        executor = DiffusersPipelineExecutor(
            DiffusionStageConfig.create("image", **keys), str(folder), "float32", "cpu"
        )
    executor.compile_or_warm_up_model()
    warm = executor.execution_counters
    assert warm["compiled_graphs"] == len(WANTED) and warm["recompiles"] == len(WANTED) - 1
    for name in [*WANTED, "half", None, "warm"]:
        request = executor.resolve(DiffusionRequest("0", PROMPT, seed=SEED, lora=name))
        (output,) = executor.execute_model((request,))
        assert output.error is None, output.error
        own, scale = WANTED[name]
        expected = plain(folder, adapters.get(own or ""), scale)
        np.testing.assert_allclose(
            output.images[0].astype(int), expected, atol=int(compiler != "eager"), err_msg=str(name)
        )
    assert executor.execution_counters["compiled_graphs"] == warm["compiled_graphs"]
    executor.shutdown()


def test_the_only_adapter_is_used(folder: Path, adapters: dict[str, Path], tmp_path: Path) -> None:
    file = adapters["cold"] / WEIGHTS
    (result,) = generate(tmp_path, "-p", "tiny-image", "--lora", f"cold={file}", PROMPT).document["results"]
    np.testing.assert_array_equal(pixels(result, tmp_path), plain(folder, adapters["cold"], 1.0))


def changed(adapter: Path, folder: Path, change: Callable[[str, torch.Tensor], tuple[str, torch.Tensor]]) -> Path:
    shutil.copytree(adapter, folder)
    weights = load_file(folder / WEIGHTS)
    save_file(dict(change(name, weight) for name, weight in weights.items()), folder / WEIGHTS)
    return folder


UNFIT: dict[str, tuple[Callable[[str, torch.Tensor], tuple[str, torch.Tensor]], str]] = {
    "of_a_unet": (lambda name, weight: (name.replace("transformer.", "unet.", 1), weight), "no place for 16 of its 16"),
    "deeper": (lambda name, weight: (name.replace("blocks.1.", "blocks.9."), weight), "no place for 8 of its 16"),
    "of_another_kind": (lambda name, weight: (name.replace("lora_", "hada_"), weight), "Invalid LoRA checkpoint"),
    "of_another_base": (
        lambda name, weight: (name, weight[:, :16].contiguous() if "to_q.lora_A" in name else weight),
        "size mismatch",
    ),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_an_unfit_adapter_is_one_error(kind: str, adapters: dict[str, Path], tmp_path: Path) -> None:
    change, why = UNFIT[kind]
    adapter = changed(adapters["warm"], tmp_path / kind, change)
    ended = generate(tmp_path / "run", "-p", "tiny-image", "--lora", f"bad={adapter}", PROMPT)
    ended.check_error(2, "the LoRA adapter `bad` cannot be used", why)
    ended.check_clean()


def test_a_pipeline_without_lora_is_one_error(adapters: dict[str, Path], tmp_path: Path) -> None:
    ended = run_omni(tmp_path, "generate", "-p", "tiny-audio", "--lora", f"bad={adapters['warm']}", PROMPT)
    ended.check_error(2, "stage `audio` takes no LoRA adapters: diffusers has none for StableAudioPipeline")


WAN = TinyPipeline(
    "WanPipeline",
    {"prompt": PROMPT, "num_inference_steps": 4, "height": 32, "width": 32, "num_frames": 5},
    {"transformer": part(), "transformer_2": part(), "boundary_ratio": 0.8},
)


@pytest.fixture(scope="module")
def wan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wan") / "model"
    build(WAN, folder)
    return folder


def save_of_wan(wan: Path, folder: Path, seed: int) -> Path:
    pipeline = DiffusionPipeline.from_pretrained(wan)
    torch.manual_seed(seed)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["to_q", "to_v"], init_lora_weights=False)
    pipeline.transformer.add_adapter(config)
    state = get_peft_model_state_dict(pipeline.transformer)
    type(pipeline).save_lora_weights(folder, transformer_lora_layers=state)
    return folder


def plain_video(wan: Path, first: Path | None, second: Path | None) -> np.ndarray:
    pipeline = DiffusionPipeline.from_pretrained(wan)
    pipeline.set_progress_bar_config(disable=True)
    if first is not None:
        pipeline.load_lora_weights(first, adapter_name="own")
    if second is not None:
        pipeline.load_lora_weights(second, adapter_name="own", load_into_transformer_2=True)
    generator = torch.Generator("cpu").manual_seed(SEED)
    return pipeline(**WAN.call, generator=generator, output_type="np").frames[0]


@pytest.mark.parametrize("loaded", [("both", "high", "low"), ("high",), ("low",)], ids="+".join)
def test_each_of_two_transformers_has_a_part_of_an_adapter(loaded: tuple[str, ...], wan: Path, tmp_path: Path) -> None:
    first, second = (save_of_wan(wan, tmp_path / f"part{seed}", seed) for seed in range(2))
    shutil.copytree(first, tmp_path / "both")
    shutil.copytree(second, tmp_path / "both" / "transformer_2")
    shutil.copytree(second, tmp_path / "low" / "transformer_2")
    parts = {"both": (first, second), "high": (first, None), "low": (None, second), None: (None, None)}
    lora = {"both": str(tmp_path / "both"), "high": str(first), "low": str(tmp_path / "low")}
    stage = DiffusionStageConfig.create("video", lora={name: lora[name] for name in loaded})
    executor = DiffusersPipelineExecutor(stage, str(wan), "float32", "cpu")
    keys = {key: value for key, value in WAN.call.items() if key != "prompt"}
    expected = {name: plain_video(wan, *files) for name, files in parts.items()}
    assert len({video.tobytes() for video in expected.values()}) == len(parts)
    for name in [*loaded, None, *reversed(loaded)]:
        wanted = replace(DiffusionRequest.from_arguments("0", PROMPT, SEED, keys), lora=name)
        request = executor.resolve(wanted)
        (output,) = executor.execute_model((request,))
        assert output.error is None, output.error
        frames = np.stack([frame for piece in output.videos[0].pieces() for frame in piece])
        np.testing.assert_array_equal(frames, (expected[name] * 255).round().astype(np.uint8), err_msg=str(name))
    executor.shutdown()


def test_a_pipeline_of_one_transformer_takes_no_second_part(adapters: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(adapters["warm"], tmp_path / "own" / "transformer_2")
    ended = generate(tmp_path / "run", "-p", "tiny-image", "--lora", f"bad={tmp_path / 'own'}", PROMPT)
    ended.check_error(2, "the LoRA adapter `bad` cannot be used", "the pipeline has no `transformer_2`")
