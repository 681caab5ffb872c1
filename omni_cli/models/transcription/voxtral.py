"""Voxtral: vLLM reads it from Mistral's files, and transformers from those beside them."""

from __future__ import annotations

from dataclasses import replace

from omni_cli.config.families import PROCESSOR_FILES
from omni_cli.models.transcription import family

_FILES = (("params.json",), ("tekken.json",), ("consolidated.safetensors",), PROCESSOR_FILES)

FAMILY = replace(
    family.FAMILY,
    name="voxtral",
    # Realtime's name in the files of transformers; vLLM's, VoxtralRealtimeGeneration, follows from Mistral's.
    architectures=("VoxtralForConditionalGeneration", "VoxtralRealtimeForConditionalGeneration"),
    claims=None,
    inner_architectures=("VoxtralRealtimeGeneration",),
    vllm_models={},
    roles=(replace(family.ROLE, needed_files=_FILES),),
)
