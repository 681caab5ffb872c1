"""The endpoints that can be measured: path, request, reader of the answer, metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from omni_cli.errors import UsageError
from omni_cli.loadtest.slo import OF_AUDIO, OF_TEXT
from omni_cli.openai_api.reading import ChatReader, ImagesReader, Reader, SpeechReader, TranscriptReader
from omni_cli.openai_api.routes import Route

EndpointName = Literal["chat", "speech", "images", "transcriptions"]


@dataclass(frozen=True)
class Endpoint:
    """`body(model, prompt, seed)` is one request; `metrics` are those that an SLO may limit.

    With `sends_speech`, a request is a form with a sentence of the package as its file.
    """

    name: EndpointName
    path: str
    body: Callable[[str, str, int], dict[str, object]]
    reader: Callable[[], Reader]
    metrics: tuple[str, ...]
    sends_speech: bool = False


def chat(modalities: tuple[str, ...], output_len: int, *, ignore_eos: bool) -> Endpoint:
    """Streamed chats of one message with `output_len` tokens of text, exactly that many with `ignore_eos`."""

    def body(model: str, prompt: str, seed: int) -> dict[str, object]:
        return {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "max_completion_tokens": output_len,
            "temperature": 0.0,
            "seed": seed,
            "stream": True,
            "stream_options": {"include_usage": True},
            # A field of vLLM, which OpenAI's own servers do not know.
            **({"ignore_eos": True} if ignore_eos else {}),
            **({"modalities": list(modalities), "audio": {"format": "pcm16"}} if "audio" in modalities else {}),
        }

    sound = OF_AUDIO if "audio" in modalities else ()
    return Endpoint("chat", Route.CHAT, body, ChatReader, ("e2e", *OF_TEXT, *sound))


def speech() -> Endpoint:
    """Texts to speak; the speech is streamed while it is generated."""

    def body(model: str, prompt: str, seed: int) -> dict[str, object]:
        return {
            "model": model, "input": prompt, "seed": seed, "response_format": "pcm", "stream_format": "audio",
        }  # fmt: skip

    return Endpoint("speech", Route.SPEECH, body, SpeechReader, ("e2e", *OF_AUDIO))


def images() -> Endpoint:
    """One image per request."""

    def body(model: str, prompt: str, seed: int) -> dict[str, object]:
        return {"model": model, "prompt": prompt, "n": 1, "seed": seed, "response_format": "b64_json"}

    return Endpoint("images", Route.IMAGES, body, ImagesReader, ("e2e",))


def transcriptions() -> Endpoint:
    """One sentence to transcribe per request; `verbose_json` also has the seconds that were heard."""

    def body(model: str, prompt: str, seed: int) -> dict[str, object]:
        return {"model": model, "language": "en", "response_format": "verbose_json"}

    metrics = ("e2e", "rtf")
    return Endpoint("transcriptions", Route.TRANSCRIPTIONS, body, TranscriptReader, metrics, sends_speech=True)


def parse_modalities(text: str) -> tuple[str, ...]:
    """Parse `text,audio` as ("text", "audio"). Raises `UsageError`."""
    names = tuple(name.strip() for name in text.split(","))
    if not set(names) <= {"text", "audio"} or "text" not in names or len(set(names)) < len(names):
        raise UsageError(f"invalid value for `--modalities`: `{text}`", hint="`text` or `text,audio`")
    return names
