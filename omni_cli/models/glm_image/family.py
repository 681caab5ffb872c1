"""GLM-Image: prior -> decoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omni_cli.config.families import CheckpointNeeds, Family, Machine, StageRole

_HERE = "omni_cli.models.glm_image"
_PRIOR = "GlmImageForConditionalGeneration"
# vLLM does not report missing weights of linear layers, such as the head.
_PRIOR_WEIGHTS = ("model.language_model.", "model.visual.", "model.vqmodel.", "lm_head.")

FAMILY = Family(
    name="glm_image",
    title="GLM-Image",
    entry_file="model_index.json",
    architectures=("GlmImagePipeline",),
    roles=(
        StageRole(
            name="prior",
            kind="ar",
            backend="vllm",
            stage=f"{_HERE}.prior_stage:PriorStage",
            settings=f"{_HERE}.checks:PriorConfig",
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
    vllm_models={_PRIOR: f"{_HERE}.prior_model:{_PRIOR}"},
    inner_architectures=("Glm4ForCausalLM",),
    builtins={"tiny-glm-image": "omni_cli.checkpoints.tiny_pipelines:tiny_glm_image"},
    profile=f"{_HERE}.family:derive_stages",
    check=f"{_HERE}.checks:check_request",
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
