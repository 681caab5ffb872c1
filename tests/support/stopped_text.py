"""Runs a language model's stage whose steps accept n-gram drafts in this process; a script: vLLM binds its process.

Reads a JSON task from stdin: the `folder` of a checkpoint, a `prompt`, ways of `sampling`, and `cuts`, each a share of
the text and the lengths of stop strings that begin there. Writes JSON to the path in argv: for each way its free answer
and those that are cut, with their stop strings. An answer has its chunks (text, token texts of its log-probabilities),
the text and token ids, what the stage `made`, and the largest number of tokens of a step.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}


def main() -> None:
    task = json.loads(sys.stdin.read())
    from omni_cli.core.compat.libraries import prepare_libraries

    prepare_libraries()
    from stage_specs import get_spec

    from omni_cli.backends.vllm.text_stage import TextStage
    from omni_cli.config.schema import ARStageConfig
    from omni_cli.requests.contents import TextOptions
    from omni_cli.requests.outputs import GenerateRequest
    from omni_cli.stage.messages import RequestDone, TextChunk

    class DraftingStage(TextStage):
        def engine_args(self) -> dict[str, object]:
            return {**super().engine_args(), "speculative_config": NGRAM}

    config = ARStageConfig.create("model", max_model_len=512, kv_cache_memory_bytes=64 << 20)
    stage = DraftingStage(get_spec(config, task["folder"]), lambda report: None)

    def run(sampling: dict[str, Any]) -> dict[str, Any]:
        stage.add(GenerateRequest("0", prompt=task["prompt"], text=TextOptions(raw=True), sampling=sampling))
        answer: dict[str, Any] = {"chunks": []}
        while stage.has_work():
            for report in stage.step():
                match report:
                    case TextChunk():
                        answer["chunks"].append([report.text, [found[0][2] for found in report.logprobs]])
                    case RequestDone():
                        text, trace = report.text, report.trace
                        assert text is not None
                        answer |= {"text": text.text, "token_ids": text.token_ids, "reason": text.finish_reason}
                        answer |= {"tokens": [found[0][2] for found in trace["output_logprobs"]]}
                        times = trace["token_times_s"]
                        answer |= {"made": list(trace["output_token_ids"]), "per_step": max(map(times.count, times))}
        return answer

    answers = []
    for sampling in task["sampling"]:
        free = run(sampling)
        for share, lengths, includes in task["cuts"]:
            begin = int(share * len(free["text"]))
            stops = [free["text"][begin : begin + length] for length in lengths]
            cut = run({**sampling, "stop": stops, "include_stop_str_in_output": includes})
            answers.append([free, stops, includes, cut])
    left = len(stage.processor.token_texts)
    Path(sys.argv[1]).write_text(json.dumps({"answers": answers, "left": left}))
    stage.close()


if __name__ == "__main__":
    main()
