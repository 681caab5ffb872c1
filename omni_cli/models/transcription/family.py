"""Speech recognition: one stage; sound in, text out."""

from __future__ import annotations

from omni_cli.families import Family, StageRole

_HERE = "omni_cli.models.transcription"

FAMILY = Family(
    name="transcription",
    title="a speech recognition model",
    architectures=("WhisperForConditionalGeneration", "Qwen3ASRForConditionalGeneration"),
    roles=(
        StageRole(
            name="transcriber",
            kind="ar",
            backend="vllm",
            stage=f"{_HERE}.stage:TranscriptionStage",
            makes="text",
            transcribes=True,
            needed_files=(
                ("tokenizer.json", "vocab.json"),
                ("processor_config.json", "preprocessor_config.json"),
            ),
        ),
    ),
    profile=f"{_HERE}.profile:derive_stages",
    reference=f"{_HERE}.reference:TranscriptionReference",
)
