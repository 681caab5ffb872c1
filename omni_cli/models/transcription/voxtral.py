"""Voxtral: vLLM reads it from Mistral's files, and transformers from those beside them."""

from __future__ import annotations

from dataclasses import replace

from omni_cli.models.transcription import family

_FILES = (("params.json",), ("tekken.json",), ("consolidated.safetensors",), family.PROCESSOR_FILES)

FAMILY = replace(
    family.FAMILY,
    name="voxtral",
    architectures=("VoxtralForConditionalGeneration",),
    claims=None,
    vllm_models={},
    roles=(replace(family.ROLE, needed_files=_FILES),),
)
