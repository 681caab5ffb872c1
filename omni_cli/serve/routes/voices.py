"""`/v1/audio/voices`: the model's speakers, and voices that are cloned from saved recordings."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import PurePosixPath
from typing import Annotated

from fastapi import APIRouter

from omni_cli.core.errors import InputError
from omni_cli.models.voices import openai_voices
from omni_cli.openai_api.replies import DeletedVoice, SavedVoiceItem, VoiceItem, VoiceList
from omni_cli.openai_api.routes import Route
from omni_cli.requests.contents import ReferenceVoice
from omni_cli.requests.voices import check_voices
from omni_cli.serve.errors import APIError
from omni_cli.serve.exchange import unix_now
from omni_cli.serve.limits import MIB
from omni_cli.serve.media import MediaDecoder
from omni_cli.serve.parsed_route import MULTIPART, RUNNING, WITH_KEY, errors, parsed_routes
from omni_cli.serve.schemas.speech import VoiceUpload
from omni_cli.serve.service import Service
from omni_cli.serve.voice_store import SavedVoice, TooManyVoices, VoiceExists, VoiceStore

_SUFFIXES = (".wav", ".flac", ".mp3", ".ogg", ".opus", ".m4a", ".aac", ".mp4", ".webm")


def voice_routes(service: Service) -> APIRouter:
    router = parsed_routes()

    @router.get(Route.VOICES, responses=errors(404, 503, *WITH_KEY))
    async def audio_voices() -> VoiceList:
        """List the model's speakers, OpenAI's voices with the speaker of each, and the saved voices."""
        service.check_makes("audio")
        service.check_ready()
        speakers = service.speakers
        own: list[VoiceItem] = [{"id": name, "name": name, "speaker": name} for name in speakers]
        others: list[VoiceItem] = [
            {"id": voice, "name": f"{voice} ({name})", "speaker": name}
            for voice, name in openai_voices(speakers).items()
        ]
        store = service.voices
        saved = [] if store is None else await asyncio.to_thread(store.voices)
        return {"voices": [*own, *others, *map(_item, saved)]}

    @router.post(Route.VOICES, responses=errors(*RUNNING))
    async def create_voice(body: Annotated[VoiceUpload, MULTIPART]) -> SavedVoiceItem:
        """Save the recording of a voice, which then speaks under its name."""
        store = _store(service)
        service.check_ready()
        if service.has_speaker(body.name):
            message = f"`{body.name}` is the name of a voice that this model has: choose another"
            raise APIError(400, message, code="voice_exists", param="name")
        limit, content = service.limits.max_voice_bytes, await body.audio_sample.read()
        if len(content) > limit:
            message = f"`audio_sample` is larger than {limit / MIB:g} MiB"
            raise APIError(413, message, code="body_too_large", param="audio_sample")
        seconds = await service.decode(partial(_checked_seconds, service, body))
        suffix = PurePosixPath(body.audio_sample.filename or "").suffix.lower()
        suffix = suffix if suffix in _SUFFIXES else ".audio"
        voice = SavedVoice(body.name, body.consent, unix_now(), round(seconds, 3), body.ref_text, suffix)
        await asyncio.to_thread(_add, store, voice, content)
        return _item(voice)

    @router.delete(Route.VOICE, responses=errors(400, 404, *WITH_KEY))
    async def delete_voice(name: str) -> DeletedVoice:
        """Delete a saved voice; requests that speak with it end as they began."""
        try:
            removed = await asyncio.to_thread(_store(service).remove, name)
        except OSError as error:
            raise APIError(500, f"the voice cannot be removed: {error.strerror}", code="storage_failed") from error
        if not removed:
            raise APIError(404, f"no saved voice `{name}`", code="voice_not_found", param="name")
        return {"id": name, "object": "audio.voice.deleted", "deleted": True}

    return router


def _store(service: Service) -> VoiceStore:
    """Return the folder of saved voices. Raises `APIError` for a model that clones none, and for a server without."""
    service.check_makes("audio")
    service.check_clones()
    if service.voices is None:
        message = "this server keeps no voices: start it with `--voices-dir DIR`, or send `ref_audio` with each request"
        raise APIError(400, message, code="voices_not_kept")
    return service.voices


def _checked_seconds(service: Service, body: VoiceUpload, decoder: MediaDecoder) -> float:
    """Return the length of a recording. Raises `APIError` (400) for one that the model cannot clone."""
    cloning = service.capabilities.cloning
    assert cloning is not None
    body.audio_sample.file.seek(0)
    samples, rate = decoder.audio_file(body.audio_sample.file, "audio_sample", max_s=cloning.max_s)
    try:
        check_voices([ReferenceVoice(samples, rate, body.ref_text, "audio in `audio_sample`")], cloning)
    except InputError as error:
        raise APIError(400, error.message, code="invalid_audio", param="audio_sample") from error
    return len(samples) / rate


def _add(store: VoiceStore, voice: SavedVoice, content: bytes) -> None:
    try:
        store.add(voice, content)
    except VoiceExists:
        message = f"a voice `{voice.name}` exists: choose another name, or delete it first"
        raise APIError(400, message, code="voice_exists", param="name") from None
    except TooManyVoices:
        raise APIError(400, "this server keeps no more voices: delete one first", code="too_many_voices") from None
    except OSError as error:
        raise APIError(500, f"the voice cannot be saved: {error.strerror}", code="storage_failed") from error


def _item(voice: SavedVoice) -> SavedVoiceItem:
    return {
        "id": voice.name,
        "object": "audio.voice",
        "name": voice.name,
        "created_at": voice.created_at,
        "consent": voice.consent,
        "ref_text": voice.ref_text,
        "seconds": voice.seconds,
    }
