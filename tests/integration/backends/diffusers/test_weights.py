"""Quantized weights and channels last: what the weights are afterwards, and the outputs."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import PRXTransformer2DModel, QwenImageTransformer2DModel

from omni_cli.backends.diffusers import weights
from omni_cli.backends.diffusers.executor import DiffusersPipelineExecutor
from omni_cli.backends.diffusers.loading import load_pipeline
from omni_cli.backends.diffusers.requests import DiffusionRequest
from omni_cli.checkpoints.resolve import resolve_model
from omni_cli.config.schema import DiffusionStageConfig
from omni_cli.core.errors import CheckpointError, UsageError


def needs(package: str, extra: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is an extra: `omni-cli[{extra}]`")


needs_torchao = needs("torchao", "quantization")
needs_bitsandbytes = needs("bitsandbytes", "bitsandbytes")
needs_gguf = needs("gguf", "quantization")


def made(model: str = "builtin:tiny-image", **keys: Any) -> tuple[np.ndarray, dict[str, float], dict[str, Any]]:
    """The image of one request, the counters and the effective settings."""
    stage = DiffusionStageConfig.create("image", num_inference_steps=4, height=64, width=64, **keys)
    executor = DiffusersPipelineExecutor(stage, resolve_model(model), "float32", "cpu")
    request = DiffusionRequest("0", "a red cat", seed=1)
    (output,) = executor.execute_model((request,))
    found = output.images[0].astype(int), dict(executor.execution_counters), dict(executor.effective)
    executor.shutdown()
    return found


@pytest.fixture(scope="module")
def plain() -> np.ndarray:
    return made()[0]


@needs_torchao
@pytest.mark.parametrize("quantization", ["int8_weight_only", "int8_dynamic", "float8_weight_only"])
def test_quantized_weights_take_less_memory_and_change_little(plain, quantization):
    pixels, counters, effective = made(quantization=quantization)
    assert counters["weight_bytes"] < 0.6 * counters["loaded_weight_bytes"]
    assert effective["quantization"] == quantization and effective["quantized_weights"] > 0
    gap = np.abs(pixels - plain)
    assert gap.max() > 0 and gap.mean() < 8
    assert not torch._inductor.config.coordinate_descent_tuning, "a setting of the process, which makes compiling slow"


@needs_bitsandbytes
@pytest.mark.parametrize(
    ("quantization", "share", "gap"), [("bitsandbytes_8bit", 0.3, 2), ("bitsandbytes_nf4", 0.2, 16)]
)
def test_weights_by_bitsandbytes_are_those_that_it_makes_of_each_layer(plain, quantization, share, gap):
    from bitsandbytes.nn import Linear4bit, Linear8bitLt

    stage = DiffusionStageConfig.create("image", quantization=quantization)
    pipeline = load_pipeline(resolve_model("builtin:tiny-image"), "float32", stage)
    linear, numbers = pipeline.transformer.proj_out, torch.randn(4, pipeline.transformer.proj_out.in_features)
    given = {"has_fp16_weights": False, "threshold": 6.0}
    if "nf4" in quantization:
        given = {"quant_type": "nf4", "compress_statistics": False, "compute_dtype": torch.float32}
    layer = (Linear4bit if "nf4" in quantization else Linear8bitLt)(linear.in_features, linear.out_features, **given)
    layer.load_state_dict(linear.state_dict())
    weights.reshape_weights(pipeline, stage)
    assert type(pipeline.transformer.proj_out) is type(layer)
    torch.testing.assert_close(pipeline.transformer.proj_out(numbers), layer.to("cpu")(numbers), rtol=0, atol=0)
    pixels, counters, effective = made(quantization=quantization)
    assert counters["weight_bytes"] < share * counters["loaded_weight_bytes"]
    assert effective["quantization"] == quantization and effective["quantized_weights"] > 0
    assert 0 < np.abs(pixels - plain).mean() < gap


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory) -> str:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "q8.gguf")


def write_gguf(path: Path, left_out: str = "") -> str:
    """Write the transformer of `tiny-image`, its matrices in 8 bits; `left_out` is a weight that is not written."""
    import gguf

    model = QwenImageTransformer2DModel.from_pretrained(resolve_model("builtin:tiny-image") + "/transformer")
    writer, eight_bits = gguf.GGUFWriter(path, "qwen_image"), gguf.GGMLQuantizationType.Q8_0
    for name, weight in model.state_dict().items():
        if name != left_out and weight.ndim == 2 and weight.shape[1] % 32 == 0:
            writer.add_tensor(name, gguf.quants.quantize(weight.numpy(), eight_bits), raw_dtype=eight_bits)
        elif name != left_out:
            writer.add_tensor(name, weight.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


@needs_gguf
def test_a_gguf_file_gives_the_image_of_its_weights(plain, gguf_file, tmp_path):
    import gguf

    folder = tmp_path / "dequantized"
    shutil.copytree(resolve_model("builtin:tiny-image"), folder)
    model = QwenImageTransformer2DModel.from_pretrained(folder / "transformer")
    tensors = {each.name: each for each in gguf.GGUFReader(gguf_file).tensors}
    whole = {name: gguf.quants.dequantize(each.data, each.tensor_type) for name, each in tensors.items()}
    model.load_state_dict({name: torch.from_numpy(whole[name].copy()) for name in model.state_dict()})
    model.save_pretrained(folder / "transformer")
    expected, _, _ = made(str(folder))
    pixels, counters, effective = made(quantization=gguf_file)
    assert np.abs(pixels - expected).max() <= 1 and np.abs(pixels - plain).max() > 1
    assert counters["weight_bytes"] < 0.3 * counters["loaded_weight_bytes"]
    assert effective["quantization"] == gguf_file and effective["quantized_weights"] > 0


@needs_gguf
def test_a_gguf_file_that_does_not_fit_is_refused(tmp_path):
    lacking = write_gguf(tmp_path / "lacking.gguf", left_out="img_in.weight")
    with pytest.raises(CheckpointError, match=r"lacking.gguf`: it lacks weights of QwenImageTransformer2DModel"):
        made(quantization=lacking)
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match=r"cannot read .*broken.gguf"):
        made(quantization=str(tmp_path / "broken.gguf"))
    stage = DiffusionStageConfig.create("image", quantization="missing.gguf")
    with pytest.raises(UsageError, match="there is none of that name"):
        weights.check_quantization(stage, "cpu")
    for parts, why in (
        ({}, "one transformer, and the model has 0"),
        ({"transformer": PRXTransformer2DModel}, "PRXTransformer2DModel is none"),
    ):
        with pytest.raises(UsageError, match=why):
            weights.check_gguf(stage, parts)


def test_channels_last_is_in_effect_and_rounds(plain):
    pixels, counters, _ = made(channels_last=True)
    assert counters["channels_last_convolutions"] > 0
    assert np.abs(pixels - plain).max() <= 1


def test_a_quantization_that_cannot_be_followed_is_refused(monkeypatch):
    def refused(quantization: str, **keys: str) -> UsageError:
        with pytest.raises(UsageError) as raised:
            weights.check_quantization(DiffusionStageConfig.create("image", quantization=quantization, **keys), "cpu")
        return raised.value

    if weights.importlib.util.find_spec("torchao") is not None:
        message = refused("float8_dynamic").message
        assert message.endswith("needs a GPU with products in float8, and the stage runs on `cpu`")
        error = refused("float8_dynamic", execution="eager")
        assert "needs compiled code" in error.message and error.hint == "--set image.execution=compile"
    monkeypatch.setattr(weights.importlib.util, "find_spec", lambda name: None)
    for value, package, extra in (
        ("int8_weight_only", "torchao", "quantization"),
        ("bitsandbytes_nf4", "bitsandbytes", "bitsandbytes"),
        ("some.gguf", "gguf", "quantization"),
    ):
        error = refused(value)
        assert error.message == f"stage `image`: `quantization: {value}` needs {package}, which is not installed"
        assert f"omni-cli[{extra}]" in (error.hint or "")


@needs_torchao
def test_a_pipeline_without_what_a_key_changes_refuses_it():
    pipeline = type("Pipeline", (), {"components": {"text": torch.nn.Linear(2, 2)}})()
    for key, why in (("quantization", "has none"), ("channels_last", "no convolutions")):
        stage = DiffusionStageConfig.create("image", **{key: "int8_weight_only" if key == "quantization" else True})
        with pytest.raises(UsageError, match=why):
            weights.reshape_weights(pipeline, stage)


@needs_torchao
@pytest.mark.parametrize(
    ("name", "keys", "chosen", "kept"),
    [
        (
            "QwenImageTransformer2DModel",
            {"num_layers": 1},
            {"attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0", "img_mlp.net.0.proj", "img_mlp.net.2"},
            {"attn.add_q_proj", "attn.to_add_out", "txt_mlp.net.2", "img_mod.1", "txt_mod.1"},
        ),
        (
            "FluxTransformer2DModel",
            {"num_layers": 1, "num_single_layers": 0},
            {"attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0", "ff.net.0.proj", "ff.net.2"},
            {"norm1.linear", "norm1_context.linear", "attn.add_k_proj", "ff_context.net.2"},
        ),
        (
            "WanTransformer3DModel",
            {"num_layers": 1},
            {f"attn1.to_{each}" for each in ("q", "k", "v", "out.0")}
            | {"attn2.to_q", "attn2.to_out.0", "ffn.net.0.proj", "ffn.net.2"},
            {"attn2.to_k", "attn2.to_v"},
        ),
    ],
)
def test_products_in_float8_are_those_of_the_rows_of_an_image(monkeypatch, name, keys, chosen, kept):
    quantized: list[str] = []

    def quantize(model, _config, filter_fn):
        quantized.extend(path for path, module in model.named_modules() if filter_fn(module, path))

    import diffusers

    monkeypatch.setattr(pytest.importorskip("torchao.quantization"), "quantize_", quantize)
    with torch.device("meta"):
        model = getattr(diffusers, name)(**keys).to(torch.bfloat16)
    weights._quantize(model, "float8_dynamic")
    within = {path.partition("blocks.0.")[2] for path in quantized}
    assert within == chosen
    layers = {path.partition("blocks.0.")[2] for path, _ in model.named_modules()}
    assert kept <= layers - within


def test_small_layers_keep_their_type():
    sizes = [(2560, 2560), (64, 4096), (4096, 64)]
    assert [weights.has_many_rows(torch.nn.Linear(*size, device="meta"), "to_q") for size in sizes] == [
        True,
        False,
        False,
    ]
