"""Payloads beside the tokens of a runner's output: its `pooler_output` has one or None per request, as `req_ids`.

For AR runners a payload is a host tensor of hidden states or codes, for diffusion runners the finished tensor or a
`NoOutput`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.engine.output_processor import OutputProcessor, OutputProcessorOutput
from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput


@dataclass(frozen=True)
class NoOutput:
    """The reason why a request has no tensor: it fails, while the rest of its batch continues."""

    reason: str


Payload: TypeAlias = torch.Tensor | NoOutput


class PendingOutput(AsyncModelRunnerOutput):
    """An output whose tokens and payloads are still being copied to the host; `get_output` waits for both."""

    def __init__(self, finish: Callable[[], ModelRunnerOutput]) -> None:
        """`finish` waits and is called once."""
        self._finish = finish

    def get_output(self) -> ModelRunnerOutput:
        return self._finish()


def with_payloads(
    output: ModelRunnerOutput | AsyncModelRunnerOutput,
    payloads: Callable[[ModelRunnerOutput], Mapping[str, Payload]],
) -> ModelRunnerOutput | PendingOutput:
    """Attach `payloads(output)` to a copy; for an output that is still being copied to the host, once that is done."""

    def attach(plain: ModelRunnerOutput) -> ModelRunnerOutput:
        by_request, attached = payloads(plain), copy.copy(plain)
        attached.pooler_output = [by_request.get(request_id) for request_id in plain.req_ids]
        return attached

    if isinstance(output, AsyncModelRunnerOutput):
        return PendingOutput(lambda: attach(output.get_output()))
    return attach(output)


class OmniOutputProcessor(OutputProcessor):
    """vLLM's output processor, which first removes `pooling_output` from outputs of sampling requests.

    vLLM treats any output with a `pooling_output` as a pooling request's: it skips the detokenizer, and the text would
    be lost.
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.hidden_rows: dict[str, list[torch.Tensor]] = {}
        self.not_numbers: set[str] = set()
        self.token_texts: dict[str, tuple[list[str], bool]] = {}
        """The text that each token adds to its request's, and whether a stop string may cut it."""

    def add_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        super().add_request(request, *args, **kwargs)
        state = self.request_states[request.request_id]
        if hasattr(state.detokenizer, "decode_next"):
            decode, texts = state.detokenizer.decode_next, list[str]()
            self.token_texts[state.external_req_id] = texts, bool(request.sampling_params.stop)

            def decode_next(token_id: int) -> str:
                texts.append(decode(token_id))
                return texts[-1]

            state.detokenizer.decode_next = decode_next

    def process_outputs(self, engine_core_outputs: list[Any], *args: Any, **kwargs: Any) -> OutputProcessorOutput:
        for output in engine_core_outputs:
            rows, output.pooling_output = output.pooling_output, None
            state = self.request_states.get(output.request_id)
            if state is None:
                continue
            if output.num_nans_in_logits:
                self.not_numbers.add(state.external_req_id)
            if rows is None:
                continue
            if output.finished and state.detokenizer.num_output_tokens():
                # After the prompt, there is a row per token. A step that accepts draft tokens may have made more: its
                # last tokens are dropped where the request ends before them.
                rows = rows[: len(output.new_token_ids)]
            self.hidden_rows.setdefault(state.external_req_id, []).append(rows)
        return super().process_outputs(engine_core_outputs, *args, **kwargs)

    def forget(self, request_id: str) -> None:
        """Drop the state of a request that has ended."""
        self.hidden_rows.pop(request_id, None)
        self.not_numbers.discard(request_id)
        self.token_texts.pop(request_id, None)

    def take_hidden_rows(self, request_id: str) -> torch.Tensor | None:
        """Remove and return a request's rows so far, (num_rows, hidden_size); None if it asked for none."""
        rows = self.hidden_rows.pop(request_id, None)
        return None if rows is None else torch.cat(rows)


class TextEngine(LLMEngine):
    """vLLM's engine, with its unused output processor replaced by ours."""

    output_processor: OmniOutputProcessor

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.output_processor = OmniOutputProcessor(
            self.renderer.tokenizer,
            log_stats=self.log_stats,
            stream_interval=self.vllm_config.scheduler_config.stream_interval,
            tracing_enabled=self.observability_config.otlp_traces_endpoint is not None,
        )
