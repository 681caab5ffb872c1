"""CSM's architecture names in vLLM."""

from __future__ import annotations

CSM = "CsmForConditionalGeneration"
BACKBONE = "CsmBackboneForCodes"
CODEC = "CsmCodecForDiffusion"
