"""Speech recognition: one stage; sound in, text out. Whatever vLLM can transcribe with, it describes itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omni_cli.config.families import PROCESSOR_FILES, Family, Machine, ar_role
from omni_cli.models.language_model.family import FAMILY as LANGUAGE_MODEL

_HERE = "omni_cli.models.transcription"
# Our class for each architecture that is more than vLLM's.
QWEN3_ASR = "OmniQwen3ASR"
KIMI_AUDIO = "OmniKimiAudio"
OWN_MODELS = {"Qwen3ASRForConditionalGeneration": QWEN3_ASR, "MoonshotKimiaForCausalLM": KIMI_AUDIO}
ROLE = ar_role(
    name="transcriber",
    stage=f"{_HERE}.stage:TranscriptionStage",
    makes="text",
    transcribes=True,
    needed_files=(*LANGUAGE_MODEL.roles[0].needed_files, PROCESSOR_FILES),
)

FAMILY = Family(
    name="transcription",
    title="a speech recognition model",
    architectures=("WhisperForConditionalGeneration", "Qwen3ASRForConditionalGeneration"),
    claims=f"{_HERE}.architectures:only_transcribes",
    roles=(ROLE,),
    vllm_models={QWEN3_ASR: f"{_HERE}.qwen3_asr:Qwen3ASR"},
    profile=f"{_HERE}.family:derive_stages",
    reference=f"{_HERE}.reference:TranscriptionReference",
)


_MAX_MODEL_LEN = {"cpu": 4096, "cuda": 4096}
# A model that may take a sound as a whole, 12.5 tokens for each second.
_MAX_MODEL_LEN_OF_WHOLE = {"cpu": 8192, "cuda": 32_768}
_MAX_NUM_SEQS = {"cpu": 8, "cuda": 64}


def derive_stages(folder: Path, machine: Machine) -> dict[str, Any]:
    """Return one stage, which is greedy, as transformers is for such models."""
    from omni_cli.checkpoints.derive import decoder_settings, read_config

    config = read_config(folder)
    own = {"max_position_embeddings": config.get("max_target_positions") or config.get("max_position_embeddings")}
    decoder = config.get("thinker_config", config).get("text_config", own)
    is_ours = config["architectures"][0] in FAMILY.architectures
    longest = _MAX_MODEL_LEN if is_ours else _MAX_MODEL_LEN_OF_WHOLE
    settings = decoder_settings(decoder, machine, max_model_len=longest, max_num_seqs=_MAX_NUM_SEQS)
    if machine.device == "cuda" and config.get("is_encoder_decoder"):
        # All that vLLM 0.32 has for cross-attention.
        settings["cudagraph_mode"] = "full_decode_only"
    return {"transcriber": {**settings, "sampling": {"temperature": 0.0}}}
