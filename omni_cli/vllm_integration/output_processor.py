"""An engine whose output processor keeps hidden states for the stage and records NaN logits."""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.engine.output_processor import OutputProcessor, OutputProcessorOutput

from omni_cli.vllm_integration.row_staging import OwedRows


class OmniOutputProcessor(OutputProcessor):
    """vLLM's output processor, which first removes `pooling_output` from outputs of sampling requests.

    vLLM treats any output with a `pooling_output` as a pooling request's: it skips the detokenizer, and the text would
    be lost.
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.hidden_rows: dict[str, list[torch.Tensor]] = {}
        self.owed_rows: dict[str, OwedRows] = {}
        self._num_taken: dict[str, int] = {}
        self._num_rows: dict[str, int] = {}  # in all, of ended requests
        self.not_numbers: set[str] = set()

    def process_outputs(self, engine_core_outputs: list[Any], *args: Any, **kwargs: Any) -> OutputProcessorOutput:
        for output in engine_core_outputs:
            made = output.pooling_output
            if made is None and not output.num_nans_in_logits:
                continue
            output.pooling_output = None
            state = self.request_states.get(output.request_id)
            if state is None:
                continue
            if output.num_nans_in_logits:
                self.not_numbers.add(state.external_req_id)
            if isinstance(made, OwedRows):
                # The latest ones include all before them.
                self.owed_rows[state.external_req_id] = made
            elif made is not None:
                self.hidden_rows.setdefault(state.external_req_id, []).append(made)
            if made is not None and output.finished:
                # One for each position but that of the last token. A step that accepts draft tokens may have made more:
                # its last tokens are dropped where the request ends before them.
                num_tokens = state.detokenizer.num_output_tokens() + len(output.new_token_ids)
                self._num_rows[state.external_req_id] = state.prompt_len + num_tokens - 1
        return super().process_outputs(engine_core_outputs, *args, **kwargs)

    def forget(self, request_id: str) -> None:
        """Drop the state of a request that has ended."""
        self.hidden_rows.pop(request_id, None)
        self.owed_rows.pop(request_id, None)
        self._num_rows.pop(request_id, None)
        self._num_taken.pop(request_id, None)
        self.not_numbers.discard(request_id)

    def take_hidden_rows(self, request_id: str) -> torch.Tensor | None:
        """Remove and return a request's rows so far, (num_rows, hidden_size); None if it asked for none."""
        owed, steps = self.owed_rows.pop(request_id, None), self.hidden_rows.pop(request_id, None)
        rows = owed.take() if owed is not None else torch.cat(steps) if steps is not None else None
        num_taken, num_rows = self._num_taken.pop(request_id, 0), self._num_rows.pop(request_id, None)
        if num_rows is not None:
            return None if rows is None else rows[: num_rows - num_taken]
        num_taken += 0 if rows is None else len(rows)
        if num_taken:  # the request runs on
            self._num_taken[request_id] = num_taken
        return rows


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
