"""The voice of a speech request: a speaker of the model, saved voices, or recordings that the request has."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from omni_cli.core.errors import InputError, UsageError
from omni_cli.requests.contents import ReferenceVoice, SpeechOptions
from omni_cli.requests.voices import check_voices
from omni_cli.serve.errors import APIError
from omni_cli.serve.media import MediaDecoder
from omni_cli.serve.schemas.fields import voice_name
from omni_cli.serve.schemas.speech import SpeechRequest
from omni_cli.serve.service import Service
from omni_cli.serve.voice_store import SavedVoice


async def voice_fields(service: Service, body: SpeechRequest) -> dict[str, Any]:
    """Return the fields of `GenerateRequest` for the voice of a request, its recordings decoded.

    Raises `APIError` (400) for voices that the model cannot speak with.
    """
    names = [name for name in map(voice_name, body.voices) if name is not None]
    recordings, texts = _as_list(body.ref_audio), _as_list(body.ref_text)
    if recordings and names:
        message = '`voice` and `ref_audio` both choose the voice: send `ref_audio` with `voice: "default"`, or without'
        raise APIError(400, message, code="invalid_value", param="ref_audio")
    try:
        service.capabilities.check_cloned(len(recordings), len(texts), _label)
    except UsageError as error:
        param = "ref_text" if error.message.startswith("`ref_text`") else "ref_audio"
        message = error.message if error.hint is None else f"{error.message} ({error.hint})"
        raise APIError(400, message, code="unsupported_input", param=param) from error
    if recordings:
        return await service.decode(partial(_decode_uploads, service, recordings, texts))
    saved = [_load_saved(service, name) for name in names]
    if any(saved):
        missing = next((name for name, voice in zip(names, saved, strict=True) if voice is None), None)
        if missing is not None:
            message = (
                f"`voice` has several names, and `{missing}` is not a saved voice: GET /v1/audio/voices lists them"
            )
            raise APIError(400, message, code="invalid_value", param="voice")
        return await service.decode(partial(_decode_saved, service, [voice for voice in saved if voice is not None]))
    if len(names) > 1:
        message = "`voice` has several names: each must be a saved voice, and GET /v1/audio/voices lists them"
        raise APIError(400, message, code="invalid_value", param="voice")
    return {"speech": SpeechOptions(speaker=names[0] if names else None)}


def _load_saved(service: Service, name: str) -> SavedVoice | None:
    """Return a saved voice that the model can clone; the model's own speakers come first."""
    if service.voices is None or service.has_speaker(name):
        return None
    return service.voices.get(name)


def _decode_uploads(service: Service, recordings: list[str], texts: list[str], decoder: MediaDecoder) -> dict[str, Any]:
    voices = []
    for number, recording in enumerate(recordings):
        param = f"ref_audio[{number}]" if len(recordings) > 1 else "ref_audio"
        samples, rate = decoder.audio(recording, param, max_s=_max_s(service))
        voices.append(ReferenceVoice(samples, rate, texts[number] if texts else None, f"audio in `{param}`"))
    return _check(service, voices, decoder, "ref_audio")


def _decode_saved(service: Service, saved: Sequence[SavedVoice], decoder: MediaDecoder) -> dict[str, Any]:
    store = service.voices
    assert store is not None
    voices = []
    for voice in saved:
        try:
            with store.path(voice).open("rb") as file:
                samples, rate = decoder.audio_file(file, "voice", max_s=_max_s(service))
        except OSError as error:
            message = f"the recording of the voice `{voice.name}` cannot be read: {error.strerror}"
            raise APIError(500, message, code="storage_failed") from error
        voices.append(ReferenceVoice(samples, rate, voice.ref_text, f"recording of the voice `{voice.name}`"))
    return _check(service, voices, decoder, "voice")


def _max_s(service: Service) -> float:
    cloning = service.capabilities.cloning
    assert cloning is not None
    return cloning.max_s


def _check(service: Service, voices: list[ReferenceVoice], decoder: MediaDecoder, param: str) -> dict[str, Any]:
    try:
        check_voices(voices, service.capabilities.cloning)
    except InputError as error:
        raise APIError(400, f"{error.message} ({error.hint})", code="invalid_audio", param=param) from error
    return {"speech": SpeechOptions(voices=tuple(voices)), "notes": tuple(decoder.notes)}


def _as_list(value: str | list[str] | None) -> list[str]:
    return [value] if isinstance(value, str) else value or []


def _label(field: str) -> str:
    return {"voice": "`ref_audio`", "ref_text": "`ref_text`"}[field]
