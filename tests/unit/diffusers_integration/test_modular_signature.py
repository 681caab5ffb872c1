"""Inputs of modular pipelines, read without importing diffusers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from omni_cli.diffusers_integration.modular_signature import checkpoint_signature, modular_signature


@pytest.mark.parametrize(
    ("name", "makes", "needed"),
    [
        ("ZImageModularPipeline", "image", ("prompt",)),
        ("StableDiffusionXLModularPipeline", "image", ("prompt",)),
        ("FluxKontextModularPipeline", "image", ("prompt",)),
        ("QwenImageEditModularPipeline", "image", ("image", "prompt")),
        ("QwenImageLayeredModularPipeline", "image", ("image",)),
        ("Wan22Image2VideoModularPipeline", "video", ("prompt", "image")),
        ("LTX25ModularPipeline", "video", ("prompt",)),
        ("EchoModularPipeline", "video", ("prompt",)),
        ("MiniMaxH3ModularPipeline", "video", ("prompt",)),
        ("MiniMaxMusic3ModularPipeline", "audio", ("prompt", "lyrics")),
    ],
)
def test_needs_and_makes(name: str, makes: str, needed: tuple[str, ...]) -> None:
    signature = modular_signature(name)
    assert signature is not None and signature.makes == makes
    assert signature.needed == tuple((each,) for each in needed)


@pytest.mark.parametrize(
    ("name", "argument", "kind", "default"),
    [
        # Of a block without a type: those of diffusers' template.
        ("Flux2KleinModularPipeline", "image", "PIL.Image.Image | list[PIL.Image.Image] | None", "None"),
        ("ZImageModularPipeline", "num_inference_steps", "int", "8"),
        # Of a guider, which is a component.
        ("ZImageModularPipeline", "guidance_scale", "float | None", "None"),
        # Wrapped over several lines.
        ("Ideogram4ModularPipeline", "guidance_schedule", "list", repr((7.0,) * 45 + (3.0,) * 3)),
        ("QwenImageModularPipeline", "output_type", "str", "'pil'"),
        ("WanAnimate2ModularPipeline", "driving_video", "list[PIL.Image.Image]", None),
    ],
)
def test_types_and_defaults(name: str, argument: str, kind: str, default: str | None) -> None:
    signature = modular_signature(name)
    assert signature is not None
    found = signature.arguments[argument]
    assert (found.type, found.default) == (kind, default)


def test_blocks_of_a_checkpoint(tmp_path: Path) -> None:
    """Those that the index names, else the class's own; none where the checkpoint brings code."""
    index = {"_class_name": "WanModularPipeline", "_blocks_class_name": "WanImage2VideoAutoBlocks"}
    (tmp_path / "modular_model_index.json").write_text(json.dumps(index))
    signature = checkpoint_signature(tmp_path)
    assert signature is not None and signature.needed == (("prompt",), ("image",))
    index["_blocks_class_name"] = "SequentialPipelineBlocks"
    (tmp_path / "modular_model_index.json").write_text(json.dumps(index))
    signature = checkpoint_signature(tmp_path)
    assert signature is not None and signature.needed == (("prompt",),)
    (tmp_path / "modular_config.json").write_text(json.dumps({"auto_map": {"ModularPipelineBlocks": "block.Blocks"}}))
    assert checkpoint_signature(tmp_path) is None
