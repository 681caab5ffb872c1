"""GLM-Image: prior -> decoder."""

from __future__ import annotations

from omni_cli.families import CheckpointNeeds, Family, StageRole

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
    profile=f"{_HERE}.profile:derive_stages",
    check=f"{_HERE}.checks:check_request",
    published={
        "zai-org/GLM-Image": CheckpointNeeds(
            36 * 10**9, {"prior": 10_114 * 10**6, "transformer": 7000 * 10**6, "text_encoder": 600 * 10**6}
        )
    },
    reference=f"{_HERE}.reference:GlmImageReference",
)
