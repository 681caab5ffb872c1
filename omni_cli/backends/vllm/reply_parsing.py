"""An answer's reasoning and calls of tools, taken out of its text by vLLM's own parsers."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vllm.entrypoints.generate.base.protocol import DeltaToolCall
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.exceptions import VLLMClientError
from vllm.parser.abstract_parser import DelegatingParser, Parser
from vllm.parser.parser_manager import ParserManager
from vllm.reasoning import ReasoningParserManager
from vllm.sampling_params import StructuredOutputsParams
from vllm.tool_parsers import ToolParser, ToolParserManager
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.structured_output.request import StructuredOutputRequest
from xgrammar import Grammar

from omni_cli.backends.vllm.prompts import PromptMaker, one_line
from omni_cli.config.schema import ARStageConfig
from omni_cli.core.errors import InputError, StageError
from omni_cli.requests.contents import ToolCall, ToolCallDelta, ToolUse
from omni_cli.requests.json_schemas import check_schema, check_tag_schema
from omni_cli.requests.outputs import GenerateRequest, TextOutput

# What the chat templates of a format contain, all of it, and the name of vLLM's parser; the first that fits counts.
_FORMATS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("<tool_call>", "<arg_key>"), "glm45"),
    (("<tool_call>", "<function="), "qwen3_coder"),
    (("<tool_call>", '"name"'), "hermes"),
    (("<minimax:tool_call>",), "minimax_m2"),
    (("<|tool_calls_section_begin|>",), "kimi_k2"),
    (("tool▁calls▁begin", "```json"), "deepseek_v3"),
    (("tool▁calls▁begin",), "deepseek_v31"),
    (("<|channel|>commentary",), "openai"),
    (("<start_function_call>",), "functiongemma"),
    (("<|tool_call>call:",), "gemma4"),
    (("<longcat_tool_call>",), "longcat"),
    (("<seed:tool_call>",), "seed_oss"),
    (("<|tools_prefix|>",), "apertus"),
    (("<|plamo:begin_tool_requests:plamo|>",), "plamo3"),
    (("<|action_start|>", "<|plugin|>"), "internlm"),
    (("<|tool_list_start|>",), "lfm2"),
    (("[TOOL_CALLS]",), "mistral"),
    (("<|python_tag|>",), "llama3_json"),
    (("Environment: ipython",), "llama3_json"),
)


class ReplyParsers:
    """The parsers of one engine; raises `StageError` for a name that vLLM does not have, or that does not fit."""

    def __init__(self, engine: LLMEngine, stage: ARStageConfig, prompts: PromptMaker) -> None:
        self._model_config = engine.vllm_config.model_config
        self._tokenizer = engine.renderer.tokenizer
        self._prompts = prompts
        self._reasoning_parser = stage.reasoning_parser
        for key, known in (
            ("tool_call_parser", ToolParserManager.list_registered()),
            ("reasoning_parser", ReasoningParserManager.list_registered()),
        ):
            name = getattr(stage, key)
            if name is not None and name not in known:
                raise StageError(f"vLLM has no `{key}: {name}`", stage=stage.name, hint=f"one of {', '.join(known)}")
        self._tool_call_parser = stage.tool_call_parser or self._checkpoints_parser()
        try:
            # A call that is required fits its schema, as with a model whose calls are JSON.
            self._parser, self._strict_parser = (
                self._get_parser(self._tool_call_parser, level) for level in ("auto", "parameter")
            )
        except TypeError as error:
            raise StageError(one_line(error), stage=stage.name) from error

    def parser(self, request: GenerateRequest) -> ReplyParser | None:
        """Return a parser for the answer to a request; None if there is nothing to take out of its text.

        Raises `InputError` for tools that this model's format is not known of, or that vLLM does not take.
        """
        use = request.text.tool_use
        if not request.text.split_reply or (self._reasoning_parser is None and use is None):
            return None
        parser = self._parser if use is None or use.choice in ("auto", "none") else self._strict_parser
        if use is not None and self._tool_call_parser is None and use.choice != "none":
            if use.choice == "auto":
                names = ", ".join(ToolParserManager.list_registered())
                raise InputError(
                    "vLLM's parser for this model's calls of tools is not known",
                    hint="require a call, `tool_choice: required`, or start the server with `--tool-call-parser NAME`: "
                    f"one of {names}",
                )
            parser = self._forced_calls()
        if parser is None:
            return None
        structured = request.sampling.get("structured_outputs")
        try:
            asked = ChatCompletionRequest(
                messages=self._prompts.conversation(request),
                chat_template_kwargs=self._prompts.template_variables(request),
                structured_outputs=None if structured is None else StructuredOutputsParams(**structured),
                **({} if use is None else {"tools": list(use.tools), "tool_choice": use.choice}),
                parallel_tool_calls=use is None or use.parallel,
            )
            variables = asked.chat_template_kwargs
            own = parser(self._tokenizer, asked.tools, chat_template_kwargs=variables, model_config=self._model_config)
            reply = ReplyParser(own, own.adjust_request(asked))
        except (ValueError, VLLMClientError) as error:
            raise InputError(f"tools: {one_line(error)}") from error
        if use is not None and reply.structured_outputs is not None:
            _check_tools(use, is_tag=reply.structured_outputs.structural_tag is not None)
        return reply

    def _checkpoints_parser(self) -> str | None:
        """Return the name of the parser for the checkpoint's own format of calls; None if it is not known."""
        template = self._prompts.get_template(with_tools=True) or ""
        name = next((name for marks, name in _FORMATS if all(mark in template for mark in marks)), None)
        if getattr(self._tokenizer, "response_template", None) is not None:
            name = "hf"
        try:
            self._get_parser(name)
        except TypeError:  # a template like the format's with a tokenizer without its marks: another format
            return None
        return name

    def _get_parser(self, tool_call_parser: str | None, strict_level: str = "auto") -> type[Parser] | None:
        found: type[Parser] | None = ParserManager.get_parser(
            tool_call_parser,
            self._reasoning_parser,
            enable_auto_tools=True,
            is_harmony=self._model_config.hf_config.model_type == "gpt_oss",
            tool_strict_level=strict_level,
            tokenizer=self._tokenizer,
        )
        return found

    def _forced_calls(self) -> type[Parser]:
        """Return a parser of calls that a grammar forces to be JSON, which any model can make."""
        reasoning = None if self._parser is None else self._parser.reasoning_parser_cls
        return type(
            "ForcedCalls", (DelegatingParser,), {"tool_parser_cls": ToolParser, "reasoning_parser_cls": reasoning}
        )


def _check_tools(use: ToolUse, *, is_tag: bool) -> None:
    """Raise `InputError` for a function whose calls must fit a schema that the grammar does not keep."""
    for function in (tool["function"] for tool in use.tools):
        named = use.choice["function"]["name"] if isinstance(use.choice, Mapping) else None
        if use.choice == "required" or named == function["name"] or (use.choice == "auto" and function.get("strict")):
            try:
                kept = (check_tag_schema if is_tag else check_schema)(function.get("parameters") or {})
                if is_tag:
                    Grammar.from_json_schema(json.dumps(kept))
            except (ValueError, TypeError, AttributeError, RuntimeError) as error:  # also for what is not a schema
                reason = re.sub(r"^.*[.]cc:\d+: (Check failed: .* is false: )?", "", one_line(error))
                raise InputError(f"`parameters` of function `{function['name']}`: {reason}") from error


@dataclass(frozen=True)
class ParsedText:
    """Text, reasoning and calls that an engine step adds to an answer."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.text or self.reasoning or self.tool_calls)


class ReplyParser:
    """Parses one answer as it is made; whole answers are the sum of it, so that both are the same."""

    def __init__(self, parser: Parser, request: ChatCompletionRequest) -> None:
        self._parser = parser
        self._request = request
        self.skip_special_tokens: bool = request.skip_special_tokens
        self._calls: dict[int, ToolCallDelta] = {}
        self._reasoning: list[str] = []
        self._grammar_waits = False

    @property
    def structured_outputs(self) -> StructuredOutputsParams | None:
        """The grammar of the calls that the request requires, or else its own."""
        bound: StructuredOutputsParams | None = self._request.structured_outputs
        return bound

    def prepare_grammar(self, bound: StructuredOutputRequest, prompt_token_ids: list[int]) -> None:
        """Tell the engine what vLLM's own server does: where the grammar begins depends on the prompt and template."""
        bound.reasoning_ended = self._request.resolve_reasoning_ended(self._parser, prompt_token_ids)
        is_optional = bound.params.structural_tag is not None and self._request.tool_choice == "auto"
        self._grammar_waits = bound.reasoning_ended is False and not is_optional
        bound.reasoning_parser_kwargs = {"chat_template_kwargs": self._request.chat_template_kwargs}

    def add(
        self, texts: Sequence[str], token_ids: Sequence[int], prompt_token_ids: Sequence[int], *, finished: bool
    ) -> ParsedText:
        """Take more of the answer; some of it may be kept until it is clear what it is.

        A token at a time: in several tokens at once, vLLM's parsers miss marks.
        """
        tokens = ([token_id] for token_id in token_ids)
        pieces: list[tuple[str, Any]] = list(itertools.zip_longest(texts, tokens, fillvalue=""))
        text, reasoning, calls = "", "", list[ToolCallDelta]()
        for number, (piece, token) in enumerate(pieces or [("", "")] * finished, start=1):
            delta = self._parser.parse_delta(
                piece,
                list(token),
                self._request,
                prompt_token_ids=list(prompt_token_ids),
                finished=finished and number >= len(pieces),
            )
            if delta is not None:
                text, reasoning = text + (delta.content or ""), reasoning + (delta.reasoning or "")
                calls += map(self._call, delta.tool_calls or ())
        self._reasoning.append(reasoning)
        return ParsedText(text, reasoning, tuple(calls))

    def _call(self, call: DeltaToolCall) -> ToolCallDelta:
        function = call.function
        name, arguments = (None, None) if function is None else (function.name, function.arguments)
        piece = ToolCallDelta(call.index, call.id, name, arguments or "")
        known = self._calls.setdefault(call.index, ToolCallDelta(call.index))
        self._calls[call.index] = ToolCallDelta(
            call.index, known.id or piece.id, known.name or piece.name, known.arguments + piece.arguments
        )
        return piece

    def complete(self, answer: TextOutput, token_ids: Sequence[int]) -> TextOutput:
        """Return the whole answer, its text already without them, with its reasoning and calls, of all `token_ids`.

        Raises `InputError` for an answer that ended within its reasoning, so that no grammar has bound it.
        """
        has_begun = bool(answer.text or self._calls) or self._parser.is_reasoning_end(list(token_ids))
        if self._grammar_waits and answer.finish_reason == "stop" and not has_begun:
            hint = "switch its thinking off, as by `chat_template_kwargs`, or choose the model's `--reasoning-parser`"
            raise InputError("the answer ended within its reasoning, before the grammar could bind it", hint=hint)
        reasoning = "".join(self._reasoning)
        calls = (self._calls[index] for index in sorted(self._calls))
        return replace(
            answer,
            reasoning=reasoning,
            tool_calls=tuple(ToolCall(call.id or "", call.name or "", call.arguments) for call in calls),
            num_reasoning_tokens=self._num_reasoning_tokens(reasoning, token_ids),
        )

    def _num_reasoning_tokens(self, reasoning: str, token_ids: Sequence[int]) -> int:
        """Count without the marks, as vLLM; some of its parsers count nothing if the first mark is in the prompt."""
        count, own = self._parser.count_reasoning_tokens, self._parser.reasoning_parser
        found = int(count(token_ids))
        if own is None or not reasoning or found:
            return found
        found = int(count((own.vocab.get(own.reasoning_start_str), *token_ids)))
        return found or len(own.model_tokenizer.encode(reasoning, add_special_tokens=False))
