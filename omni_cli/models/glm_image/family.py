"""GLM-Image: prior -> decoder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omni_cli.config.families import CheckpointNeeds, Family, Machine, StageRole, ar_role
from omni_cli.core.errors import InputError

if TYPE_CHECKING:
    from omni_cli.config.schema import EngineConfig
    from omni_cli.models.glm_image.settings import PriorConfig
    from omni_cli.requests.outputs import GenerateRequest

_HERE = "omni_cli.models.glm_image"
# vLLM does not report missing weights of linear layers, such as the head.
_PRIOR_WEIGHTS = ("model.language_model.", "model.visual.", "model.vqmodel.", "lm_head.")

FAMILY = Family(
    name="glm_image",
    title="GLM-Image",
    entry_file="model_index.json",
    architectures=("GlmImagePipeline",),
    roles=(
        ar_role(
            name="prior",
            stage=f"{_HERE}.prior_stage:PriorStage",
            model=f"{_HERE}.prior_stage:GlmImageForConditionalGeneration",
            settings=f"{_HERE}.settings:PriorConfig",
            takes=("image", "sampling", "temperature"),
            decoder="vision_language_encoder/text_config",
            needed_files=(
                ("vision_language_encoder/config.json",),
                ("processor/tokenizer.json",),
                ("processor/tokenizer_config.json",),
                ("processor/processor_config.json", "processor/preprocessor_config.json"),
            ),
            needed_weights=tuple(f"vision_language_encoder/{prefix}" for prefix in _PRIOR_WEIGHTS),
        ),
        StageRole(
            name="decoder",
            kind="diffusion",
            backend="diffusers",
            stage=f"{_HERE}.decoder_stage:DecoderStage",
            input="prior",
            makes="image",
            takes=("height", "width", "num_inference_steps", "guidance_scale"),
            needed_files=(
                ("transformer/config.json",),
                ("text_encoder/config.json",),
                ("vae/config.json",),
                ("scheduler/scheduler_config.json",),
                ("tokenizer/tokenizer_config.json",),
            ),
            needed_weights=("transformer/transformer_blocks.", "text_encoder/encoder.", "vae/decoder."),
        ),
    ),
    inner_architectures=("Glm4ForCausalLM",),
    builtins={"tiny-glm-image": "omni_cli.checkpoints.tiny_pipelines:tiny_glm_image"},
    profile=f"{_HERE}.family:derive_stages",
    check=f"{_HERE}.family:check_request",
    published={
        "zai-org/GLM-Image": CheckpointNeeds(
            36 * 10**9, {"prior": 10_114 * 10**6, "transformer": 7000 * 10**6, "text_encoder": 600 * 10**6}
        )
    },
    reference=f"{_HERE}.reference:GlmImageReference",
)


_MAX_MODEL_LEN = {"cpu": 8192, "cuda": 16384}
_MAX_NUM_SEQS = {"cpu": 8, "cuda": 16}
# transformers' default.
_TOP_K = 50


def derive_stages(folder: Path, machine: Machine) -> dict[str, Any]:
    """Return both stages, with the checkpoint's sampling; sizes and steps are the pipeline's defaults."""
    from omni_cli.checkpoints.derive import decoder_settings, read_config

    prior = folder / "vision_language_encoder"
    prior_settings = decoder_settings(
        read_config(prior)["text_config"], machine, max_model_len=_MAX_MODEL_LEN, max_num_seqs=_MAX_NUM_SEQS
    )
    max_num_seqs = 1 if machine.device == "cpu" else 4
    return {
        "prior": {**prior_settings, "sampling": _sampling(prior / "generation_config.json")},
        "decoder": {"max_num_seqs": max_num_seqs, "execution": "eager", "output_copy": "async"},
    }


def _sampling(file: Path) -> dict[str, Any]:
    """Return the sampling of `GlmImagePipeline`, which is never greedy, by vLLM's names."""
    from omni_cli.checkpoints.files import read_object

    config = read_object(file) if file.is_file() else {}
    named = {name: config[name] for name in ("temperature", "top_p") if config.get(name) is not None}
    top_k = config.get("top_k")
    return {"temperature": 1.0, **named, "top_k": _TOP_K if top_k is None else top_k}


FACTOR = 32
"""Pixels per token in either direction, before the tokens are upsampled."""
_DEFAULT_PIXELS = 1024
# The other fields of `Sampling` set the number of tokens, which is fixed, or concern prompt tokens without logits.
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed", "logprobs")


def check_request(request: GenerateRequest, config: EngineConfig) -> None:
    """Raise `InputError` for a request that the prior would reject."""
    from omni_cli.models.glm_image.settings import PriorConfig

    prior = config.stages[0]
    assert isinstance(prior, PriorConfig)
    check_arguments(request.diffusion)
    check_sampling(request.sampling)
    get_size(request.diffusion, prior, [image.shape for image in request.media.images])


def check_arguments(names: Iterable[str]) -> None:
    decoder = FAMILY.role("decoder")
    for name in names:
        if decoder is None or name not in decoder.takes:
            raise InputError(f"this pipeline takes no `{name}`", hint=f"remove `{name}`")


def check_sampling(names: Iterable[str], prefix: str = "") -> None:
    for name in names:
        if name not in _SAMPLING:
            raise InputError(
                f"{prefix}this model's sampling has no `{name}`: the size of the image determines the number of tokens",
                hint=f"remove `{name}`; it has {', '.join(f'`{name}`' for name in _SAMPLING)}",
            )


def get_size(diffusion: Mapping[str, object], prior: PriorConfig, images: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Return height and width in pixels: the request's, else the profile's, else those of the first image.

    Raises `InputError` unless an image of this size is a whole number of tokens.
    """
    wanted = (diffusion.get("height"), diffusion.get("width"))
    of_image = images[0][:2] if images else (_DEFAULT_PIXELS, _DEFAULT_PIXELS)
    height, width = (
        next(int(str(pixels)) for pixels in choices if pixels is not None)
        for choices in zip(wanted, (prior.height, prior.width), of_image, strict=True)
    )
    for name, pixels in (("height", height), ("width", width)):
        if pixels % FACTOR or not pixels:
            below, above = pixels // FACTOR * FACTOR, (pixels // FACTOR + 1) * FACTOR
            near = f"{below} or {above}" if below else str(above)
            raise InputError(
                f"`{name}` must be a multiple of {FACTOR} for this model, not {pixels}", hint=f"use {near}"
            )
    return height, width
