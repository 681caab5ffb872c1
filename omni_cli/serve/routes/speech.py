"""`POST /v1/audio/speech`: text-to-speech."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import replace

from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from omni_cli.config.schema import ARStageConfig
from omni_cli.core.errors import OmniError
from omni_cli.openai_api.replies import SpeechEvent
from omni_cli.openai_api.routes import Route
from omni_cli.requests.encoding import AUDIO_TYPES, AudioEncoder, encode_audio
from omni_cli.requests.outputs import AudioChunk, AudioOutput, GenerateRequest, RequestResult
from omni_cli.requests.voices import make_spoken_request
from omni_cli.serve.chat_reply import count_tokens, split_audio
from omni_cli.serve.errors import APIError, StreamAborted, as_api_error
from omni_cli.serve.exchange import FINISH_REASON, Exchange, new_id
from omni_cli.serve.parsed_route import RUNNING, content, errors, parsed_routes
from omni_cli.serve.schemas.speech import OPUS_RATES, SpeechRequest
from omni_cli.serve.service import Service
from omni_cli.serve.speech_voices import voice_fields
from omni_cli.serve.sse import begin, event_stream


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
            **await voice_fields(service, body),
        )
        options = {"stream_audio": body.stream_format is not None, **body.request_fields("speech")}
        settings = replace(settings, speech=replace(settings.speech, **options))
        generate = make_spoken_request(settings, body.input, _system_prompt(service, body))
        if body.stream_format == "sse":
            return await event_stream(_events(service, generate, exchange, body), exchange, service.log)
        if body.stream_format == "audio":
            return await _stream(service, generate, exchange, body)
        result = await service.result(generate, exchange)
        audio = _audio(result)
        exchange.headers[FINISH_REASON] = audio.finish_reason
        _state_rate(exchange, body, audio)
        form = body.audio_format, body.sample_rate
        content = await asyncio.to_thread(encode_audio, audio.samples, audio.sample_rate, *form)
        return Response(content, media_type=AUDIO_TYPES[body.audio_format])

    return router


def _check(service: Service, body: SpeechRequest) -> None:
    service.check_model(body.model)
    service.check_makes("audio")
    service.check_prompt_length(len(body.input) + len(body.instructions or ""))
    if body.audio_format == "opus" and body.sample_rate not in (None, *OPUS_RATES):
        message = f"`sample_rate`: Opus has no {body.sample_rate} Hz; it has {', '.join(map(str, OPUS_RATES))}"
        raise APIError(400, message, code="unsupported_value", param="sample_rate")


def _system_prompt(service: Service, body: SpeechRequest) -> str | None:
    """Return the profile's prompt and the request's instructions; None without any. Raises `APIError` (400)."""
    if not body.instructions:
        return None
    if "instructions" not in service.capabilities.fields:
        message = "`instructions` is not supported: no system prompt changes how this model speaks a text"
        raise APIError(400, message, code="unsupported_parameter", param="instructions")
    first = service.config.stages[0]
    own = first.system_prompt if isinstance(first, ARStageConfig) else None
    return "\n\n".join(filter(None, (own, body.instructions)))


async def _events(
    service: Service, request: GenerateRequest, exchange: Exchange, body: SpeechRequest
) -> AsyncGenerator[SpeechEvent, None]:
    async with aclosing(_pieces(service, request, exchange, body)) as pieces:
        async for piece in pieces:
            if isinstance(piece, bytes):
                yield {"type": "speech.audio.delta", "audio": base64.b64encode(piece).decode()}
                continue
            reason = _audio(piece).finish_reason
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
                        exchange.trailers[FINISH_REASON] = _audio(piece).finish_reason
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
                    service.note_audio(exchange)
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


def _audio(result: RequestResult) -> AudioOutput:
    return next(output for output in result.outputs if isinstance(output, AudioOutput))
