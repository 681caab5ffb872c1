"""Answers of a language model's stage whose steps accept n-gram drafts, in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omni_cli.backends.vllm.text_stage import TextStage
from omni_cli.config.schema import ARStageConfig
from omni_cli.requests.contents import TextOptions
from omni_cli.requests.events import TextDelta
from omni_cli.requests.outputs import GenerateRequest
from omni_cli.stage.messages import RequestDone
from support.stage_specs import get_spec, run_requests

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}


class DraftingStage(TextStage):
    def engine_args(self) -> dict[str, object]:
        return {**super().engine_args(), "speculative_config": NGRAM}


def answer(folder: str, prompt: str, sampling: Sequence[dict[str, Any]], cuts: Sequence[Any]) -> dict[str, Any]:
    """Answer a prompt in some ways of `sampling`, freely and with stop strings.

    `cuts` are each a share of the text, the lengths of stop strings that begin there, and whether they stay in the
    text. An answer has its chunks (text, token texts of its log-probabilities), the text and token ids, what the stage
    `made`, and the largest number of tokens of a step.
    """
    config = ARStageConfig.create("model", max_model_len=512, kv_cache_memory_bytes=64 << 20)
    stage = DraftingStage(get_spec(config, folder), lambda report: None)
    answers = []
    for way in sampling:
        free = run(stage, prompt, way)
        for share, lengths, includes in cuts:
            begin = int(share * len(free["text"]))
            stops = [free["text"][begin : begin + length] for length in lengths]
            cut = run(stage, prompt, {**way, "stop": stops, "include_stop_str_in_output": includes})
            answers.append([free, stops, includes, cut])
    left = len(stage.processor.token_texts)
    stage.close()
    return {"answers": answers, "left": left}


def run(stage: TextStage, prompt: str, sampling: dict[str, Any]) -> dict[str, Any]:
    """The answer of one request."""
    (reports,) = run_requests(
        stage, [GenerateRequest("0", prompt=prompt, text=TextOptions(raw=True), sampling=sampling)]
    )
    chunks: list[Any] = [report for report in reports if isinstance(report, TextDelta)]
    (done,) = [report for report in reports if isinstance(report, RequestDone)]
    text, trace = done.text, done.trace
    times = trace["token_times_s"]
    return {
        "chunks": [[chunk.text, [found[0][2] for found in chunk.logprobs]] for chunk in chunks],
        "text": text.text,
        "token_ids": text.token_ids,
        "reason": text.finish_reason,
        "tokens": [found[0][2] for found in trace["output_logprobs"]],
        "made": list(trace["output_token_ids"]),
        "per_step": max(map(times.count, times)),
    }
