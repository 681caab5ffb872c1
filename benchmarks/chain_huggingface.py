"""Hugging Face's side of `chain_throughput.py`: one request after another, in a separate process."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from chain_workload import (
    CHAIN,
    CODEC_TOKENS,
    PROMPTS,
    REPETITION_PENALTY,
    STAGES,
    TEXT_TOKENS,
    RequestWork,
    Round,
)


class HuggingFaceProcess:
    """Runs rounds on request and sleeps in between.

    A separate process, started before omni's: omni's settings for its stages (how OpenMP's threads wait) must not slow
    the other side down. torch has its default number of threads there.
    """

    def __init__(self, model: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(model, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self.num_threads: int = self._connection.recv()

    def run(self) -> Round:
        """Run all requests once. Raises `EOFError` if the process has failed; its traceback is on stderr."""
        self._connection.send(True)
        return self._connection.recv()

    def close(self) -> None:
        self._connection.close()
        self._process.join(10)
        self._process.kill()


def _serve(model: str, connection: Connection) -> None:
    import torch

    side = _HuggingFace(model)
    connection.send(torch.get_num_threads())
    while True:
        try:
            connection.recv()
        except EOFError:
            return
        connection.send(side.run())


class _HuggingFace:
    def __init__(self, model: str) -> None:
        from omni_cli.core.compat.torchvision import ensure_torchvision_importable

        ensure_torchvision_importable()
        import torch
        from transformers import Qwen2_5OmniForConditionalGeneration, Qwen2_5OmniProcessor
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()

        self.processor = Qwen2_5OmniProcessor.from_pretrained(model)
        self.model = Qwen2_5OmniForConditionalGeneration.from_pretrained(model, dtype=torch.float32).eval()
        self.seconds: dict[str, float] = {}
        self.codes: tuple[int, ...] = ()
        self.seed = 0
        talker_generate, token2wav_forward = self.model.talker.generate, self.model.token2wav.forward

        def keep_codes(input_ids: Any, **kwargs: Any) -> Any:
            sequences = talker_generate(input_ids=input_ids, **kwargs)
            self.codes = tuple(sequences[0, input_ids.shape[1] :].tolist())
            return sequences

        def same_noise(*args: Any, **kwargs: Any) -> Any:
            torch.manual_seed(self.seed)
            return token2wav_forward(*args, **kwargs)

        self.model.thinker.generate = self._timed("thinker", self.model.thinker.generate)
        self.model.talker.generate = self._timed("talker", keep_codes)
        self.model.token2wav.forward = self._timed("token2wav", same_noise)

    def _timed(self, stage: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            started_s = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds[stage] += time.perf_counter() - started_s

        return timed

    def run(self) -> Round:
        self.seconds = dict.fromkeys(STAGES, 0.0)
        started_s = time.perf_counter()
        work = tuple(self._request(seed, prompt) for seed, prompt in enumerate(PROMPTS))
        return Round({CHAIN: time.perf_counter() - started_s, **self.seconds}, work)

    def _request(self, seed: int, prompt: str) -> RequestWork:
        self.seed = seed
        conversation = [{"role": "user", "content": [{"type": "text", "text": prompt}]}]
        text = self.processor.apply_chat_template(conversation, add_generation_prompt=True, tokenize=False)
        inputs = self.processor(text=[text], return_tensors="pt", padding=True)
        talker = self.model.config.talker_config
        sequences, waveform = self.model.generate(
            **inputs,
            thinker_do_sample=False,
            thinker_max_new_tokens=TEXT_TOKENS,
            thinker_min_new_tokens=TEXT_TOKENS,
            talker_do_sample=False,
            talker_max_new_tokens=CODEC_TOKENS,
            talker_eos_token_id=[talker.tts_codec_pad_token_id, talker.tts_codec_end_token_id],
            talker_repetition_penalty=REPETITION_PENALTY,
        )
        text_ids = tuple(sequences[0, inputs["input_ids"].shape[1] :].tolist())
        return RequestWork(text_ids, self.codes, waveform.numel())
