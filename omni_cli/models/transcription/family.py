"""Speech recognition: one stage; sound in, text out."""

from __future__ import annotations

from dataclasses import replace

from omni_cli.families import Family, StageRole

_HERE = "omni_cli.models.transcription"
# Our class for each architecture that is more than vLLM's.
QWEN3_ASR = "OmniQwen3ASR"
OWN_MODELS = {"Qwen3ASRForConditionalGeneration": QWEN3_ASR}
_PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")
_ROLE = StageRole(
    name="transcriber",
    kind="ar",
    backend="vllm",
    stage=f"{_HERE}.stage:TranscriptionStage",
    makes="text",
    transcribes=True,
    needed_files=(("tokenizer.json", "vocab.json"), _PROCESSOR_FILES),
)

FAMILY = Family(
    name="transcription",
    title="a speech recognition model",
    architectures=("WhisperForConditionalGeneration", "Qwen3ASRForConditionalGeneration"),
    roles=(_ROLE,),
    vllm_models={QWEN3_ASR: f"{_HERE}.qwen3_asr:Qwen3ASR"},
    profile=f"{_HERE}.profile:derive_stages",
    reference=f"{_HERE}.reference:TranscriptionReference",
)
# vLLM reads it from Mistral's files, and transformers from those beside them.
VOXTRAL = replace(
    FAMILY,
    name="voxtral",
    architectures=("VoxtralForConditionalGeneration",),
    vllm_models={},
    roles=(
        replace(
            _ROLE,
            needed_files=(("params.json",), ("tekken.json",), ("consolidated.safetensors",), _PROCESSOR_FILES),
        ),
    ),
)
