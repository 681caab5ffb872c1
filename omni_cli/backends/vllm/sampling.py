"""The sampling parameters of a request, its own over the profile's over the checkpoint's, and its grammar.

Each kind of constraint has its backend, whichever request comes first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

from vllm import SamplingParams
from vllm.exceptions import VLLMClientError, VLLMValidationError
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.structured_output.backend_guidance import GuidanceBackend, GuidanceGrammar
from vllm.v1.structured_output.backend_types import StructuredOutputGrammar, StructuredOutputOptions
from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend

from omni_cli.backends.vllm.prompts import one_line
from omni_cli.config.schema import ARStageConfig
from omni_cli.core.errors import InputError
from omni_cli.requests.json_schemas import as_grammar, check_tag_schema
from omni_cli.requests.outputs import GenerateRequest


class WholeGrammar(GuidanceGrammar):
    """vLLM's grammar of llguidance, which fails an answer that ends where nothing fits the schema."""

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        accepted: bool = super().accept_tokens(request_id, tokens)
        return accepted and (not self.terminated or self.ll_matcher.is_accepting())


class ChosenBackend(GuidanceBackend):
    """vLLM's backend of llguidance, which keeps a schema or refuses its keyword, behind that of xgrammar for the rest.

    Only xgrammar has the tags of tool calls, and its regular expressions and EBNF may contain a model's own marks.
    """

    def compile_grammar(
        self, request_type: StructuredOutputOptions, grammar_spec: str, stop_token_ids: set[int] | None = None
    ) -> StructuredOutputGrammar:
        if request_type is not StructuredOutputOptions.JSON:
            with suppress(RuntimeError, ValueError):
                return self._xgrammar.compile_grammar(request_type, grammar_spec, stop_token_ids)
        return WholeGrammar(**vars(super().compile_grammar(request_type, grammar_spec, stop_token_ids)))

    @cached_property
    def _xgrammar(self) -> XgrammarBackend:
        return XgrammarBackend(self.vllm_config, self.tokenizer, self.ll_tokenizer.vocab_size)


class ConstrainedParams(SamplingParams):
    """vLLM's parameters, checked for the backend that `ChosenBackend` uses."""

    def _validate_structured_outputs(self, model_config: Any, config: Any, tokenizer: Any) -> None:
        if config is not None and self.structured_outputs is not None:
            config = replace(config, backend="auto" if self.structured_outputs.json is None else "guidance")
        try:
            super()._validate_structured_outputs(model_config, config, tokenizer)
        except VLLMValidationError as error:
            raise VLLMValidationError(f"`structured_outputs`: {error}") from error


def choose_backend(engine: LLMEngine) -> None:
    """Set the engine's backend before its first constraint: a large vocabulary takes a second."""
    manager = engine.engine_core.engine_core.structured_output_manager
    if manager.backend is None and GuidanceBackend.is_tokenizer_supported(manager.tokenizer):
        vocab_size = engine.vllm_config.model_config.get_vocab_size()
        manager.backend = ChosenBackend(engine.vllm_config, manager.tokenizer, vocab_size)


def without_filler(asked: StructuredOutputsParams | dict[str, Any]) -> StructuredOutputsParams:
    """Return a constraint with bounded white space in JSON."""
    bound = StructuredOutputsParams(**asked) if isinstance(asked, dict) else asked
    if bound.json_object:
        return replace(bound, json=as_grammar({"type": "object"}), json_object=None)
    if bound.json is not None:
        return replace(bound, json=as_grammar(json.loads(bound.json) if isinstance(bound.json, str) else bound.json))
    if bound.structural_tag is not None:
        return replace(
            bound, structural_tag=json.dumps(json.loads(bound.structural_tag, object_hook=_bound_whitespace))
        )
    return bound


def _bound_whitespace(part: dict[str, Any]) -> dict[str, Any]:
    """Allow at most a line break and a blank between the tokens of JSON in a structural tag."""
    if part.get("type") != "json_schema" or "json_schema" not in part:
        return part
    return {**part, "json_schema": check_tag_schema(part["json_schema"]), "max_whitespace_cnt": 2}


def make_sampling_params(
    request: GenerateRequest,
    stage: ARStageConfig,
    context: int,
    defaults: Mapping[str, Any],
    extra: Mapping[str, object],
    *,
    makes_text: bool,
) -> SamplingParams:
    """Return vLLM's parameters; without a maximum of tokens, an answer may fill the `context`.

    Raises `InputError` for a wrong parameter, and for a maximum that no prompt leaves room for.
    """
    asked: dict[str, Any] = dict(request.sampling)
    name = "max_tokens"
    if request.speech.max_audio_tokens is not None and not makes_text:
        asked["max_tokens"], name = request.speech.max_audio_tokens, "max_audio_tokens"
    limit = asked.get("max_tokens")
    if isinstance(limit, int) and limit > context:
        raise InputError(f"`{name}` is {limit}, and the context of stage `{stage.name}` has {context} tokens")
    given = {"seed": request.seed, "max_tokens": None, **defaults, **stage.sampling.set_values(), **asked, **extra}
    try:
        if given.get("structured_outputs") is not None:
            given["structured_outputs"] = without_filler(given["structured_outputs"])
        return ConstrainedParams(**given, output_kind=RequestOutputKind.DELTA)
    except (ValueError, TypeError, VLLMClientError) as error:
        raise InputError(f"sampling: {one_line(error)}") from error
