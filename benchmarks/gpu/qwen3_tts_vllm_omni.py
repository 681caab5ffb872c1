"""vllm-omni's Qwen3-TTS as a side of `qwen3_tts.py`: questions and answers are lines of JSON.

    python benchmarks/gpu/qwen3_tts_vllm_omni.py FOLDER FRAMES --batches 8

vllm-omni's own configuration of the model (`deploy/qwen3_tts.yaml`: its second runner, chunks while the talker runs, a
first chunk of one frame) with omni's 32 requests and 8 GiB of KV cache. With `--batches 8`, its decoder also has CUDA
graphs for batches of up to 8 requests, as its profile for one GPU under load has. `full_utterance_decode` is its own
way to a whole answer.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

KV_CACHE_BYTES = 8 << 30


def main() -> None:
    options = _options()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM prints
    # Not in the processes that vLLM spawns, which import this file.
    import vllm_omni
    from vllm_omni.entrypoints.omni import Omni

    with tempfile.TemporaryDirectory() as scratch:
        deploy = Path(scratch) / "deploy.yaml"
        deploy.write_text(json.dumps(_deployment(Path(vllm_omni.__file__).parent / "deploy", options)))
        omni = Omni(model=options.folder, deploy_config=str(deploy), stage_init_timeout=560, init_timeout=580)
        speaker = _Speaker(omni, options.folder, options.frames)
    answers.write("null\n")
    answers.flush()
    for line in sys.stdin:
        question = json.loads(line)
        answers.write(json.dumps(speaker.speak(question["texts"], streamed=question["streamed"])) + "\n")
        answers.flush()
    omni.close()


def _deployment(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    batches = options.batches
    graphs = {"decode_batch_max_size": batches, "decode_cudagraph_batch_sizes": [*range(1, batches + 1)]}
    shared = {"max_num_seqs": 32, "dtype": "bfloat16", "gpu_memory_utilization": 0.05}
    # The decoder has no KV cache. With a size given, it is not taken for what others load meanwhile.
    sizes = (KV_CACHE_BYTES, 1 << 30)
    return {
        "base_config": str(folder / "qwen3_tts.yaml"),
        "model_runner": options.runner,
        **({"connectors": {"connector_of_shared_memory": {"extra": graphs}}} if batches > 1 else {}),
        "stages": [{"stage_id": number, **shared, "kv_cache_memory_bytes": size} for number, size in enumerate(sizes)],
    }


class _Speaker:
    """Requests of an engine, all of a question at once."""

    def __init__(self, omni: Any, folder: str, num_frames: int) -> None:
        from transformers import AutoTokenizer
        from vllm_omni.model_executor.models.qwen3_tts.configuration_qwen3_tts import Qwen3TTSConfig

        self._omni, self._num_frames = omni, num_frames
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._config = Qwen3TTSConfig.from_pretrained(folder).talker_config

    def speak(self, texts: list[str], *, streamed: bool) -> list[tuple[float | None, float, int]]:
        """Return the seconds to the first audio and to the end, and the number of samples, of each request."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        num_tokens = self._num_frames + 1
        talker = SamplingParams(
            temperature=0.9, top_k=50, repetition_penalty=1.05, max_tokens=num_tokens, min_tokens=num_tokens,
            # The small tokenizer's end has the id of a code.
            ignore_eos=True, detokenize=False,
        )  # fmt: skip
        decoder = SamplingParams(temperature=0.0, max_tokens=65536)
        if streamed:
            decoder.output_kind = RequestOutputKind.DELTA
        prompts = [self._prompt(text, streamed=streamed) for text in texts]
        began_s = time.perf_counter()
        rows: dict[str, tuple[float | None, float, int]] = {}
        for output in self._omni.generate(prompts, [talker, decoder], py_generator=True, use_tqdm=False):
            now_s = time.perf_counter() - began_s
            first_s, _, before = rows.get(output.request_id, (None, 0.0, 0))
            made = _num_samples(output)
            if made and first_s is None:
                first_s = now_s
            rows[output.request_id] = (first_s, now_s, before + made if streamed else max(before, made))
        return list(rows.values())

    def _prompt(self, text: str, *, streamed: bool) -> dict[str, Any]:
        from vllm_omni.model_executor.models.qwen3_tts.prompt_embeds_builder import Qwen3TTSPromptEmbedsBuilder

        asked: dict[str, Any] = {
            "task_type": ["CustomVoice"], "text": [text], "language": ["English"], "speaker": ["vivian"],
            "instruct": [""], "max_new_tokens": [self._num_frames + 1],
            **({} if streamed else {"full_utterance_decode": [True]}),
        }  # fmt: skip
        length = Qwen3TTSPromptEmbedsBuilder.estimate_prompt_len_from_additional_information(
            asked,
            task_type="CustomVoice",
            tokenize_prompt=lambda prompt: self._tokenizer(prompt)["input_ids"],
            codec_language_id=self._config.codec_language_id,
            spk_is_dialect=self._config.spk_is_dialect,
        )
        return {"prompt_token_ids": [1] * length, "additional_information": asked}


def _num_samples(output: Any) -> int:
    """Return the samples of an output, wherever vllm-omni keeps them."""
    import torch

    for holder in (output, *(getattr(output, "outputs", None) or ())):
        for name in ("multimodal_output", "_multimodal_output"):
            made = getattr(holder, name, None)
            for key in ("audio", "model_outputs") if isinstance(made, Mapping) else ():
                parts = made.get(key)
                if parts is not None:
                    return sum(torch.as_tensor(part).numel() for part in _listed(parts))
    return 0


def _listed(parts: Any) -> Any:
    return parts if isinstance(parts, list | tuple) else [parts]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("frames", type=int)
    parser.add_argument("--batches", type=int, default=1, help="largest batch of the decoder with a graph")
    parser.add_argument("--runner", choices=["v1", "v2"], default="v2", help="vLLM's model runner")
    return parser.parse_args()


if __name__ == "__main__":
    main()
