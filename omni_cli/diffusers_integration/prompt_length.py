"""Check a prompt's length against the text encoders' limits, beyond which diffusers would cut it silently."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from omni_cli.diffusers_integration.requests import DiffusionRequest
from omni_cli.errors import InputError

# Returned by tokenizers whose files set no limit (transformers' VERY_LARGE_INTEGER is 1e30).
_NO_LIMIT = 10**9


def check_prompt_lengths(pipeline: Any, call_defaults: Mapping[str, Any], request: DiffusionRequest) -> tuple[int, ...]:
    """Return token counts of prompt and negative prompt, per tokenizer; raises `InputError` if one is too long.

    In pipelines with several text encoders a prompt may exceed some of their limits, as it often does for the CLIP half
    of a CLIP and T5 pair; it is rejected if every one of them would cut it.
    """
    tokenizers = _tokenizers(pipeline)
    limits = [_limit(pipeline, tokenizer, call_defaults, request) for tokenizer in tokenizers]
    counts: list[int] = []
    for name, text in (("prompt", request.prompt), ("negative_prompt", request.negative_prompt)):
        if text is None:
            continue
        lengths = [_count(pipeline, tokenizer, text) for tokenizer in tokenizers]
        counts += lengths
        if lengths and all(length > limit for length, limit in zip(lengths, limits, strict=True)):
            length, limit = max(zip(lengths, limits, strict=True), key=lambda pair: pair[1])
            longer = " or raise `max_sequence_length`" if "max_sequence_length" in call_defaults else ""
            raise InputError(
                f"`{name}` has {length} tokens; the maximum of the pipeline's text encoder is {limit}",
                hint=f"shorten it by {length - limit} tokens{longer}",
            )
    return tuple(counts)


def _tokenizers(pipeline: Any) -> list[Any]:
    """The pipeline's tokenizers in name order, without processors, which have no length limit of their own."""
    found = {name: part for name, part in pipeline.components.items() if name.startswith("tokenizer")}
    return [found[name] for name in sorted(found) if hasattr(found[name], "model_max_length")]


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


def _limit(pipeline: Any, tokenizer: Any, call_defaults: Mapping[str, Any], request: DiffusionRequest) -> int:
    """CLIP's positions are fixed; the others follow `max_sequence_length` if the pipeline has it."""
    own = tokenizer.model_max_length if tokenizer.model_max_length < _NO_LIMIT else None
    if _is_clip(tokenizer):
        return own or _NO_LIMIT
    length = request.call.get("max_sequence_length") or call_defaults.get("max_sequence_length")
    if length is None and hasattr(pipeline, "encode_prompt"):
        parameter = inspect.signature(pipeline.encode_prompt).parameters.get("max_sequence_length")
        length = parameter.default if parameter is not None and isinstance(parameter.default, int) else None
    return length or getattr(pipeline, "tokenizer_max_length", None) or own or _NO_LIMIT
