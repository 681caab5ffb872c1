"""A chat's reply in OpenAI's shape, whole or in chunks."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from omni_cli.encoding import encode_flac, encode_pcm16, encode_wav
from omni_cli.outputs import AudioOutput, RequestResult, StageTrace, TextOutput
from omni_cli.serve.exchange import new_id, unix_now
from omni_cli.serve.schemas.replies import (
    ChatCompletion,
    ChatCompletionChunk,
    Choice,
    ChunkChoice,
    ReplyDelta,
    ReplyMessage,
    Usage,
)

_ENCODERS: dict[str, Callable[[np.ndarray, int], bytes]] = {
    "wav": encode_wav,
    "flac": encode_flac,
    "pcm16": lambda samples, _sample_rate: encode_pcm16(samples),
}
# Speech is sent in pieces of this length, so that playback can start early.
PIECE_S = 1.0


@dataclass(frozen=True)
class ChatReply:
    """The parts and formats that one chat asked for."""

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

    def completion(self, result: RequestResult) -> ChatCompletion:
        """Build the whole reply."""
        text, audio = _outputs(result)
        message: ReplyMessage = {
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
        choice: Choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": text.finish_reason}
        self._add_token_ids(choice, result)
        return {
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": [choice],
            "usage": usage(result.stages),
        }

    def begin(self) -> ChatCompletionChunk:
        """Build the first chunk: who speaks."""
        delta: ReplyDelta = {"role": "assistant", "content": "" if self.wants_text else None}
        if self.wants_audio:
            delta["audio"] = {"id": self.audio_id}
        return self._chunk(delta)

    def text(self, text: str) -> ChatCompletionChunk:
        delta: ReplyDelta = {"content": text} if self.wants_text else {}
        if self.wants_audio:
            delta["audio"] = {"id": self.audio_id, "transcript": text}
        return self._chunk(delta)

    def audio(self, samples: np.ndarray, sample_rate: int) -> Iterator[ChatCompletionChunk]:
        """Split speech, float32 (num_samples,), into chunks of PCM."""
        for piece in split_audio(samples, sample_rate):
            data = base64.b64encode(encode_pcm16(piece)).decode()
            yield self._chunk({"audio": {"id": self.audio_id, "data": data}})

    def end(self, result: RequestResult) -> ChatCompletionChunk:
        """Build the last chunk of the reply: why it ends."""
        text, _ = _outputs(result)
        delta: ReplyDelta = {"audio": {"id": self.audio_id, "expires_at": self.created}} if self.wants_audio else {}
        chunk = self._chunk(delta, finish_reason=text.finish_reason)
        self._add_token_ids(chunk["choices"][0], result)
        return chunk

    def usage(self, result: RequestResult) -> ChatCompletionChunk:
        """Build the chunk after the last one that `stream_options.include_usage` asks for."""
        return {**self._chunk({}), "choices": [], "usage": usage(result.stages)}

    def _chunk(self, delta: ReplyDelta, finish_reason: str | None = None) -> ChatCompletionChunk:
        return {
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}],
        }

    def _add_token_ids(self, choice: Choice | ChunkChoice, result: RequestResult) -> None:
        """Add the tokens of every stage that made some: the text's under vLLM's name, the speech's next to them."""
        if not self.wants_token_ids:
            return
        text, *others = [trace.output_token_ids for trace in result.stages if trace.output_token_ids is not None]
        choice["token_ids"] = list(text)
        if others:
            choice["audio_token_ids"] = list(others[0])


def split_audio(samples: np.ndarray, sample_rate: int) -> Iterator[np.ndarray]:
    """Split speech into pieces of `PIECE_S` seconds; the last one may be shorter."""
    length = int(PIECE_S * sample_rate)
    for start in range(0, len(samples), length):
        yield samples[start : start + length]


def usage(traces: tuple[StageTrace, ...]) -> Usage:
    """Count tokens in OpenAI's shape: the first stage's input, and the output of all stages."""
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
