"""Count a prompt's tokens, and say which of them the text encoders do not read."""

from __future__ import annotations

import inspect
from typing import Any

from omni_cli.diffusers_integration.requests import DiffusionRequest
from omni_cli.inputs.pipeline_call import PipelineCall

# Returned by tokenizers whose files set no limit (transformers' VERY_LARGE_INTEGER is 1e30).
_NO_LIMIT = 10**9


def count_prompts(pipeline: Any, call: PipelineCall, request: DiffusionRequest) -> tuple[tuple[int, ...], list[str]]:
    """Return the token counts of prompt and negative prompt per tokenizer, and a sentence for each that is cut."""
    tokenizers = _tokenizers(pipeline)
    counts: list[int] = []
    notes: list[str] = []
    for name, text in (("prompt", request.prompt), ("negative_prompt", request.negative_prompt)):
        for part, tokenizer in tokenizers.items() if text is not None else ():
            count, limit = _count(pipeline, tokenizer, text or ""), _limit(pipeline, tokenizer, call, request)
            counts.append(count)
            if count > limit:
                of_which = "the text encoder reads" if len(tokenizers) == 1 else f"that of `{part}` reads"
                notes.append(f"`{name}` is truncated: it has {count} tokens, of which {of_which} {limit}")
    return tuple(counts), notes


def _tokenizers(pipeline: Any) -> dict[str, Any]:
    """The pipeline's tokenizers in name order, without processors, which have no length limit of their own."""
    found = {name: part for name, part in pipeline.components.items() if name.startswith("tokenizer")}
    return {name: found[name] for name in sorted(found) if hasattr(found[name], "model_max_length")}


def _is_clip(tokenizer: object) -> bool:
    return type(tokenizer).__name__.startswith("CLIP")


def _count(pipeline: Any, tokenizer: Any, text: str) -> int:
    """Count tokens towards the limit: with special tokens, without the dropped part of a template.

    Some pipelines encode only the texts in quotes, each on its own.
    """
    if hasattr(pipeline, "get_glyph_texts"):
        (quoted,) = pipeline.get_glyph_texts(text)
        return max((len(tokenizer(part, verbose=False).input_ids) for part in quoted), default=0)
    template = getattr(pipeline, "prompt_template_encode", None)
    if _is_clip(tokenizer) or not isinstance(template, str) or "{}" not in template:
        return len(tokenizer(text, verbose=False).input_ids)
    dropped = getattr(pipeline, "prompt_template_encode_start_idx", 0)
    return len(tokenizer(template.format(text), verbose=False).input_ids) - dropped


def _limit(pipeline: Any, tokenizer: Any, call: PipelineCall, request: DiffusionRequest) -> int:
    """CLIP's positions are fixed; the others follow `max_sequence_length` if the pipeline has it."""
    own = tokenizer.model_max_length if tokenizer.model_max_length < _NO_LIMIT else None
    if _is_clip(tokenizer):
        return own or _NO_LIMIT
    default = call.arguments.get("max_sequence_length")
    length: Any = request.call.get("max_sequence_length") or (None if default is None else default.default)
    if length is None and hasattr(pipeline, "encode_prompt"):
        parameter = inspect.signature(pipeline.encode_prompt).parameters.get("max_sequence_length")
        length = parameter.default if parameter is not None and isinstance(parameter.default, int) else None
    limit: int = length or getattr(pipeline, "tokenizer_max_length", None) or own or _NO_LIMIT
    return limit
