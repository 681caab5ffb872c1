"""CSM's names among vLLM's architectures."""

from __future__ import annotations

CSM = "CsmForConditionalGeneration"
BACKBONE = "CsmBackboneForCodes"
CODEC = "CsmCodecForDiffusion"
