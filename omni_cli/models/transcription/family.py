"""Speech recognition: one stage; sound in, text out."""

from __future__ import annotations

from omni_cli.families import Family, StageRole

_HERE = "omni_cli.models.transcription"
# Our class for each architecture that is more than vLLM's.
QWEN3_ASR = "OmniQwen3ASR"
OWN_MODELS = {"Qwen3ASRForConditionalGeneration": QWEN3_ASR}
PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")
ROLE = StageRole(
    name="transcriber",
    kind="ar",
    backend="vllm",
    stage=f"{_HERE}.stage:TranscriptionStage",
    makes="text",
    transcribes=True,
    needed_files=(("tokenizer.json", "vocab.json"), PROCESSOR_FILES),
)

FAMILY = Family(
    name="transcription",
    title="a speech recognition model",
    architectures=("WhisperForConditionalGeneration", "Qwen3ASRForConditionalGeneration"),
    roles=(ROLE,),
    vllm_models={QWEN3_ASR: f"{_HERE}.qwen3_asr:Qwen3ASR"},
    profile=f"{_HERE}.profile:derive_stages",
    reference=f"{_HERE}.reference:TranscriptionReference",
)
