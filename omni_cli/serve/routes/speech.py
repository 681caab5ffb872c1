"""`POST /v1/audio/speech`: text-to-speech; `/v1/audio/voices`: speakers, and voices cloned from saved recordings."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath
from typing import Annotated, Any, cast

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from omni_cli.core.errors import InputError, OmniError, UsageError
from omni_cli.models.voices import openai_voices
from omni_cli.openai_api.replies import Deleted, SavedVoiceItem, SpeechEvent, VoiceItem, VoiceList
from omni_cli.openai_api.routes import Route
from omni_cli.requests.capabilities import cloning_profiles
from omni_cli.requests.contents import ReferenceVoice, SpeechOptions, TranscriptionOptions
from omni_cli.requests.encoding import AUDIO_TYPES, AudioEncoder, encode_audio
from omni_cli.requests.events import AudioChunk
from omni_cli.requests.outputs import AudioOutput, GenerateRequest, RequestResult
from omni_cli.requests.voices import check_voices, make_spoken_request, with_instructions
from omni_cli.serve.conversation import count_tokens, get_output, split_audio
from omni_cli.serve.errors import APIError, StreamAborted, as_api_error, refuse, storing
from omni_cli.serve.exchange import FINISH_REASON, Exchange, new_id, unix_now
from omni_cli.serve.limits import MIB
from omni_cli.serve.media import MediaDecoder
from omni_cli.serve.parsed_route import MULTIPART, RUNNING, WITH_KEY, content, errors, parsed_routes
from omni_cli.serve.schemas.fields import voice_name
from omni_cli.serve.schemas.speech import OPUS_RATES, SpeechRequest, VoiceUpload
from omni_cli.serve.service import Service
from omni_cli.serve.sse import begin, event_stream
from omni_cli.serve.voice_store import SavedVoice, VoiceStore

_SUFFIXES = (".wav", ".flac", ".mp3", ".ogg", ".opus", ".m4a", ".aac", ".mp4", ".webm")


def speech_routes(service: Service) -> APIRouter:
    router = parsed_routes()

    @router.post(
        Route.SPEECH,
        response_class=Response,
        responses=errors(*RUNNING) | content("The speech.", *AUDIO_TYPES.values(), "text/event-stream"),
    )
    async def audio_speech(body: SpeechRequest, request: Request) -> Response:
        """Speak a text: the first stage receives it as its own answer, and the others speak it."""
        exchange = Exchange.from_scope(request.scope)
        _check(service, body)
        settings = GenerateRequest(
            request_id=new_id("speech"),
            seed=service.choose_seed(body.seed, exchange),
            lora=service.adapter(body.model),
            **await _voice_fields(service, body),
        )
        options = {"stream_audio": body.stream_format is not None, **body.request_fields("speech")}
        language = TranscriptionOptions(**body.request_fields("transcription"))
        settings = replace(settings, speech=replace(settings.speech, **options), transcription=language)
        generate = make_spoken_request(settings, body.input)
        if body.instructions:
            generate = with_instructions(generate, service.config, body.instructions)
        if body.stream_format == "sse":
            return await event_stream(_events(service, generate, exchange, body), exchange, service.log)
        if body.stream_format == "audio":
            return await _stream(service, generate, exchange, body)
        result = await service.result(generate, exchange)
        audio = get_output(AudioOutput, result)
        exchange.headers[FINISH_REASON] = audio.finish_reason
        _state_rate(exchange, body, audio)
        form = body.audio_format, body.sample_rate
        content = await asyncio.to_thread(encode_audio, audio.samples, audio.sample_rate, *form)
        return Response(content, media_type=AUDIO_TYPES[body.audio_format])

    return router


# The fields of recordings by their names elsewhere.
_LABELS = {"voice": "`ref_audio`", "ref_text": "`ref_text`"}
# Fields that not every model takes.
_OPTIONAL = {
    "instructions": "no system prompt changes how this model speaks a text",
    "language": "this model speaks the language of its text",
}


def _check(service: Service, body: SpeechRequest) -> None:
    service.check(body.model, "audio", len(body.input) + len(body.instructions or ""))
    if body.audio_format == "opus" and body.sample_rate not in (None, *OPUS_RATES):
        message = f"`sample_rate`: Opus has no {body.sample_rate} Hz; it has {', '.join(map(str, OPUS_RATES))}"
        raise APIError(400, message, code="unsupported_value", param="sample_rate")
    # A model that hears takes the language of what it hears.
    taken = service.capabilities.fields - ({"language"} if service.capabilities.hears else set())
    for name, why in _OPTIONAL.items():
        if getattr(body, name) and name not in taken:
            raise APIError(400, f"`{name}` is not supported: {why}", code="unsupported_parameter", param=name)


async def _events(
    service: Service, request: GenerateRequest, exchange: Exchange, body: SpeechRequest
) -> AsyncGenerator[SpeechEvent, None]:
    async with aclosing(_pieces(service, request, exchange, body)) as pieces:
        async for piece in pieces:
            if isinstance(piece, bytes):
                yield {"type": "speech.audio.delta", "audio": base64.b64encode(piece).decode()}
                continue
            reason = get_output(AudioOutput, piece).finish_reason
            yield {"type": "speech.audio.done", "usage": count_tokens(piece), "finish_reason": reason}


async def _stream(
    service: Service, request: GenerateRequest, exchange: Exchange, body: SpeechRequest
) -> StreamingResponse:
    """Send speech as it is generated, and then the reason for its end as a trailer: the sound cannot carry it."""
    pieces = await begin(_pieces(service, request, exchange, body))

    async def send() -> AsyncIterator[bytes]:
        try:
            async with aclosing(pieces):
                async for piece in pieces:
                    if isinstance(piece, bytes):
                        yield piece
                    else:
                        exchange.trailers[FINISH_REASON] = get_output(AudioOutput, piece).finish_reason
        except (OmniError, APIError) as failure:
            raise StreamAborted(as_api_error(failure).kind) from failure

    return StreamingResponse(send(), media_type=AUDIO_TYPES[body.audio_format], headers={"Trailer": FINISH_REASON})


async def _pieces(
    service: Service, request: GenerateRequest, exchange: Exchange, body: SpeechRequest
) -> AsyncGenerator[bytes | RequestResult, None]:
    """Yield the pieces of a file as they are made, and then the result."""
    encoder: AudioEncoder | None = None
    async with aclosing(service.events(request, exchange)) as events:
        async for event in events:
            match event:
                case AudioChunk():
                    service.note_sent("ttfp_s", exchange)
                    encoder = encoder or AudioEncoder(event.sample_rate, body.audio_format, to_rate=body.sample_rate)
                    _state_rate(exchange, body, event)
                    for samples in split_audio(event.samples, event.sample_rate):
                        if piece := encoder.add(samples):
                            yield piece
                case RequestResult():
                    if encoder is not None and (rest := encoder.finish()):
                        yield rest
                    yield event


def _state_rate(exchange: Exchange, body: SpeechRequest, audio: AudioChunk | AudioOutput) -> None:
    """Add the sample rate and the channels of raw PCM to its media type, which alone can state them."""
    if body.audio_format == "pcm" and body.stream_format != "sse":
        rate, channels = body.sample_rate or audio.sample_rate, 1 if audio.samples.ndim == 1 else audio.samples.shape[1]
        exchange.headers["Content-Type"] = f"{AUDIO_TYPES['pcm']};rate={rate};channels={channels}"


async def _voice_fields(service: Service, body: SpeechRequest) -> dict[str, Any]:
    """Return the fields of `GenerateRequest` for the voice of a request, its recordings decoded.

    Raises `APIError` (400) for voices that the model cannot speak with.
    """
    names = [name for name in map(voice_name, body.voices) if name is not None]
    recordings, texts = _as_list(body.ref_audio), _as_list(body.ref_text)
    both = '`voice` and `ref_audio` both choose the voice: send `ref_audio` with `voice: "default"`, or without'
    refuse(("ref_audio", recordings and names, both))
    try:
        service.capabilities.check_cloned(len(recordings), len(texts), _LABELS.__getitem__)
    except UsageError as error:
        param = "ref_text" if error.message.startswith("`ref_text`") else "ref_audio"
        raise APIError(400, error.in_one_line, code="unsupported_input", param=param) from error
    if recordings:
        return await service.decode(partial(_decode_uploads, service, recordings, texts))
    # The model's own speakers come first.
    others = [] if service.voices is None else [name for name in names if not service.has_speaker(name)]
    saved = {name: voice for name in others if service.voices and (voice := service.voices.get(name)) is not None}
    other = next((name for name in names if name not in saved), None)
    listed = "GET /v1/audio/voices lists them"
    refuse(
        ("voice", saved and other, f"`voice` has several names, and `{other}` is not a saved voice: {listed}"),
        ("voice", not saved and len(names) > 1, f"`voice` has several names: each must be a saved voice, and {listed}"),
    )
    if saved:
        return await service.decode(partial(_decode_saved, service, [saved[name] for name in names]))
    # Some models have a speaker for any number.
    if service.voices is not None and others and not others[0].isdecimal():
        kept = [voice.name for voice in await asyncio.to_thread(service.voices.voices)]
        there = ", ".join([*service.speakers, *kept])
        refuse(("voice", kept, f"unknown speaker `{others[0]}`: there are {there}"))
    return {"speech": SpeechOptions(speaker=names[0] if names else None)}


def _decode_uploads(service: Service, recordings: list[str], texts: list[str], decoder: MediaDecoder) -> dict[str, Any]:
    voices = []
    for number, recording in enumerate(recordings):
        param = f"ref_audio[{number}]" if len(recordings) > 1 else "ref_audio"
        samples, rate = decoder.audio(recording, param, max_s=_max_s(service))
        voices.append(ReferenceVoice(samples, rate, texts[number] if texts else None, f"audio in `{param}`"))
    return _check_voices(service, voices, decoder, "ref_audio")


def _decode_saved(service: Service, saved: Sequence[SavedVoice], decoder: MediaDecoder) -> dict[str, Any]:
    store = service.voices
    assert store is not None
    voices = []
    for voice in saved:
        with storing(f"the recording of the voice `{voice.name}` cannot be read"), store.path(voice).open("rb") as file:
            samples, rate = decoder.audio(file, "voice", max_s=_max_s(service))
        voices.append(ReferenceVoice(samples, rate, voice.ref_text, f"recording of the voice `{voice.name}`"))
    return _check_voices(service, voices, decoder, "voice")


def _max_s(service: Service) -> float:
    cloning = service.capabilities.cloning
    assert cloning is not None
    return cloning.max_s


def _check_voices(service: Service, voices: list[ReferenceVoice], decoder: MediaDecoder, param: str) -> dict[str, Any]:
    try:
        check_voices(voices, service.capabilities.cloning)
    except InputError as error:
        raise APIError(400, error.in_one_line, code="invalid_audio", param=param) from error
    return {"speech": SpeechOptions(voices=tuple(voices)), "notes": tuple(decoder.notes)}


def _as_list(value: str | list[str] | None) -> list[str]:
    return [value] if isinstance(value, str) else value or []


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
        with storing("the voice cannot be saved"):
            await asyncio.to_thread(store.add, voice, content)
        return _item(voice)

    @router.delete(Route.VOICE, responses=errors(400, 404, *WITH_KEY))
    async def delete_voice(name: str) -> Deleted:
        """Delete a saved voice; requests that speak with it end as they began."""
        with storing("the voice cannot be removed"):
            removed = await asyncio.to_thread(_store(service).remove, name)
        if not removed:
            raise APIError(404, f"no saved voice `{name}`", code="voice_not_found", param="name")
        return {"id": name, "object": "audio.voice.deleted", "deleted": True}

    return router


def _store(service: Service) -> VoiceStore:
    """Return the folder of saved voices. Raises `APIError` for a model that clones none, and for a server without."""
    service.check_makes("audio")
    if service.capabilities.cloning is None:
        raise service.make_refusal(f"does not clone voices; profiles that do: {', '.join(cloning_profiles())}")
    if service.voices is None:
        message = "this server keeps no voices: start it with `--voices-dir DIR`, or send `ref_audio` with each request"
        raise APIError(400, message, code="voices_not_kept")
    return service.voices


def _checked_seconds(service: Service, body: VoiceUpload, decoder: MediaDecoder) -> float:
    """Return the length of a recording. Raises `APIError` (400) for one that the model cannot clone."""
    body.audio_sample.file.seek(0)
    samples, rate = decoder.audio(body.audio_sample.file, "audio_sample", max_s=_max_s(service))
    voice = ReferenceVoice(samples, rate, body.ref_text, "audio in `audio_sample`")
    _check_voices(service, [voice], decoder, "audio_sample")
    return len(samples) / rate


def _item(voice: SavedVoice) -> SavedVoiceItem:
    """Return a record with its id; the route leaves out the suffix."""
    return cast(SavedVoiceItem, {"id": voice.name, "object": "audio.voice", **msgspec.to_builtins(voice)})
