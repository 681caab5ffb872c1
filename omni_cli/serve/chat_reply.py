"""A chat's answer in OpenAI's shape, whole or in pieces."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from omni_cli.encoding import encode_flac, encode_pcm16, encode_wav
from omni_cli.outputs import AudioOutput, RequestResult, StageTrace, TextOutput
from omni_cli.serve.exchange import new_id, unix_now

_ENCODERS: dict[str, Callable[[np.ndarray, int], bytes]] = {
    "wav": encode_wav,
    "flac": encode_flac,
    "pcm16": lambda samples, _sample_rate: encode_pcm16(samples),
}
# Speech is sent in pieces of this length, so that a player can begin with the first.
PIECE_S = 1.0


@dataclass(frozen=True)
class ChatReply:
    """How one chat wants its answer."""

    model: str
    wants_text: bool
    wants_audio: bool
    audio_format: str
    wants_token_ids: bool
    id: str = field(default_factory=lambda: new_id("chatcmpl"))
    created: int = field(default_factory=unix_now)

    @property
    def audio_id(self) -> str:
        return "audio_" + self.id.removeprefix("chatcmpl-")

    def completion(self, result: RequestResult) -> dict[str, Any]:
        """The whole answer, a `chat.completion`."""
        text, audio = _outputs(result)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": text.text if self.wants_text else None,
            "refusal": None,
        }
        if audio is not None:
            data = _ENCODERS[self.audio_format](audio.samples, audio.sample_rate)
            message["audio"] = {
                "id": self.audio_id,
                "data": base64.b64encode(data).decode(),
                "expires_at": self.created,
                "transcript": text.text,
            }
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": text.finish_reason}
        self._add_token_ids(choice, result)
        return {**self._head("chat.completion"), "choices": [choice], "usage": usage(result.stages)}

    def begin(self) -> dict[str, Any]:
        """The first piece: who speaks."""
        delta: dict[str, Any] = {"role": "assistant", "content": "" if self.wants_text else None}
        if self.wants_audio:
            delta["audio"] = {"id": self.audio_id}
        return self._chunk(delta)

    def text(self, text: str) -> dict[str, Any]:
        delta: dict[str, Any] = {"content": text} if self.wants_text else {}
        if self.wants_audio:
            delta["audio"] = {"id": self.audio_id, "transcript": text}
        return self._chunk(delta)

    def audio(self, samples: np.ndarray, sample_rate: int) -> Iterator[dict[str, Any]]:
        """Speech, float32 (num_samples,), as pieces of PCM."""
        for piece in split_audio(samples, sample_rate):
            data = base64.b64encode(encode_pcm16(piece)).decode()
            yield self._chunk({"audio": {"id": self.audio_id, "data": data}})

    def end(self, result: RequestResult) -> dict[str, Any]:
        """The last piece of the answer: why it ends."""
        text, _ = _outputs(result)
        delta = {"audio": {"id": self.audio_id, "expires_at": self.created}} if self.wants_audio else {}
        chunk = self._chunk(delta, finish_reason=text.finish_reason)
        self._add_token_ids(chunk["choices"][0], result)
        return chunk

    def usage(self, result: RequestResult) -> dict[str, Any]:
        """The piece after the last one that `stream_options.include_usage` asks for."""
        return {**self._head("chat.completion.chunk"), "choices": [], "usage": usage(result.stages)}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return {**self._head("chat.completion.chunk"), "choices": [choice]}

    def _add_token_ids(self, choice: dict[str, Any], result: RequestResult) -> None:
        """Of every stage that made tokens: the text's by vLLM's name, the speech's beside them."""
        if not self.wants_token_ids:
            return
        text, *others = [trace.output_token_ids for trace in result.stages if trace.output_token_ids is not None]
        choice["token_ids"] = list(text)
        if others:
            choice["audio_token_ids"] = list(others[0])


def split_audio(samples: np.ndarray, sample_rate: int) -> Iterator[np.ndarray]:
    """Pieces of `PIECE_S` seconds; the last one may be shorter."""
    length = int(PIECE_S * sample_rate)
    for start in range(0, len(samples), length):
        yield samples[start : start + length]


def usage(traces: tuple[StageTrace, ...]) -> dict[str, Any]:
    """Tokens in OpenAI's shape: what went into the first stage, and what came out of all that make tokens."""
    text = traces[0].num_output_tokens or 0
    audio = sum(trace.num_output_tokens or 0 for trace in traces[1:])
    prompt = traces[0].num_input_tokens or 0
    return {
        "prompt_tokens": prompt,
        "completion_tokens": text + audio,
        "total_tokens": prompt + text + audio,
        "completion_tokens_details": {"audio_tokens": audio},
    }


def _outputs(result: RequestResult) -> tuple[TextOutput, AudioOutput | None]:
    text = next(output for output in result.outputs if isinstance(output, TextOutput))
    return text, next((output for output in result.outputs if isinstance(output, AudioOutput)), None)
