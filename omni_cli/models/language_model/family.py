"""Any language model that vLLM supports: one stage; text in, and the media that vLLM's processor for it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omni_cli.config.families import PROCESSOR_FILES, Family, Machine, ar_role

_TOKENIZERS = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "tekken.json",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tiktoken.model",
    "qwen.tiktoken",
)

FAMILY = Family(
    name="language_model",
    title="a language model",
    roles=(
        ar_role(
            name="model",
            stage="omni_cli.backends.vllm.text_stage:TextStage",
            makes="text",
            needed_files=(_TOKENIZERS,),
            processor_files=PROCESSOR_FILES[::-1],
        ),
    ),
    profile="omni_cli.models.language_model.family:derive_stages",
    reference="omni_cli.models.language_model.reference:LanguageModelReference",
)


_MAX_MODEL_LEN = {"cpu": 8192, "cuda": 32768}
_MAX_NUM_SEQS = {"cpu": 8, "cuda": 64}


def derive_stages(folder: Path, machine: Machine) -> dict[str, Any]:
    """One stage; its context is sized for the machine."""
    from omni_cli.checkpoints.derive import decoder_settings, read_config

    config = read_config(folder)
    decoder = config.get("text_config") or config
    settings = decoder_settings(decoder, machine, max_model_len=_MAX_MODEL_LEN, max_num_seqs=_MAX_NUM_SEQS)
    # Sampled as the checkpoint's generation_config.json has it, up to the end of the context.
    return {"model": settings}
