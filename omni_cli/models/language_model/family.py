"""Any language model that vLLM supports: one stage; text in, and the media that vLLM's processor for it takes."""

from __future__ import annotations

from omni_cli.families import Family, StageRole

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
        StageRole(
            name="model",
            kind="ar",
            backend="vllm",
            stage="omni_cli.vllm_integration.text_stage:TextStage",
            makes="text",
            needed_files=(_TOKENIZERS,),
            processor_files=("preprocessor_config.json", "processor_config.json"),
        ),
    ),
    profile="omni_cli.models.language_model.profile:derive_stages",
    reference="omni_cli.models.language_model.reference:LanguageModelReference",
)
