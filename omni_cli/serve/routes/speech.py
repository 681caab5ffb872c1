"""`POST /v1/audio/speech`: text-to-speech."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from omni_cli.encoding import encode_flac, encode_pcm16, encode_wav
from omni_cli.errors import OmniError
from omni_cli.outputs import AudioChunk, AudioOutput, GenerateRequest, RequestResult
from omni_cli.serve.chat_reply import split_audio, usage
from omni_cli.serve.errors import APIError, StreamAborted, as_api_error
from omni_cli.serve.exchange import Exchange, new_id
from omni_cli.serve.parsed_route import parsed_routes
from omni_cli.serve.routes.documented import RUNNING, content, errors
from omni_cli.serve.schemas.fields import voice_name
from omni_cli.serve.schemas.replies import SpeechEvent
from omni_cli.serve.schemas.speech import SpeechRequest
from omni_cli.serve.service import Service
from omni_cli.serve.sse import begin, event_stream

_MEDIA_TYPES = {"wav": "audio/wav", "flac": "audio/flac", "pcm": "audio/pcm"}
# An omni model speaks its own answers, so the text is passed as its answer to this instruction.
_INSTRUCTION = "Read the following text aloud, word for word, and say nothing else:\n\n"


def speech_routes(service: Service) -> APIRouter:
    router = parsed_routes()

    @router.post(
        "/v1/audio/speech",
        response_class=Response,
        responses=errors(*RUNNING) | content("The speech.", *_MEDIA_TYPES.values(), "text/event-stream"),
    )
    async def audio_speech(body: SpeechRequest, request: Request) -> Response:
        """Speak a text: the first stage receives it as its own answer, and the others speak it."""
        exchange = Exchange.from_scope(request.scope)
        _check(service, body)
        generate = GenerateRequest(
            request_id=new_id("speech"),
            prompt=_INSTRUCTION + body.input,
            reply=body.input,
            seed=service.config.seed if body.seed is None else body.seed,
            modalities=frozenset({"audio"}),
            speaker=voice_name(body.voice),
            stream_audio=body.stream_format is not None,
        )
        if body.stream_format == "sse":
            return await event_stream(_events(service, generate, exchange), exchange, service.log)
        if body.stream_format == "audio":
            return await _stream(service, generate, exchange)
        result = await service.result(generate, exchange)
        content = await asyncio.to_thread(_encode, _audio(result), body.response_format)
        return Response(content, media_type=_MEDIA_TYPES[body.response_format])

    return router


def _check(service: Service, body: SpeechRequest) -> None:
    service.check_model(body.model)
    service.check_makes("audio")
    service.check_prompt_length(len(body.input))
    if body.stream_format is not None and body.response_format != "pcm":
        raise APIError(
            400,
            "streamed speech is `pcm`: other formats store their length first",
            code="unsupported_value",
            param="response_format",
        )


async def _events(service: Service, request: GenerateRequest, exchange: Exchange) -> AsyncGenerator[SpeechEvent, None]:
    async with aclosing(service.events(request, exchange)) as events:
        async for event in events:
            match event:
                case AudioChunk():
                    service.note_audio(exchange)
                    for piece in split_audio(event.samples, event.sample_rate):
                        data = base64.b64encode(encode_pcm16(piece)).decode()
                        yield {"type": "speech.audio.delta", "audio": data}
                case RequestResult():
                    tokens = usage(event.stages)
                    yield {
                        "type": "speech.audio.done",
                        "usage": {
                            "input_tokens": tokens["prompt_tokens"],
                            "output_tokens": tokens["completion_tokens"],
                            "total_tokens": tokens["total_tokens"],
                        },
                    }


async def _stream(service: Service, request: GenerateRequest, exchange: Exchange) -> StreamingResponse:
    """Send raw PCM as it is generated."""
    pieces = await begin(_pieces(service, request, exchange))

    async def send() -> AsyncIterator[bytes]:
        try:
            async with aclosing(pieces):
                async for piece in pieces:
                    yield piece
        except (OmniError, APIError) as failure:
            raise StreamAborted(as_api_error(failure).kind) from failure

    return StreamingResponse(send(), media_type=_MEDIA_TYPES["pcm"])


async def _pieces(service: Service, request: GenerateRequest, exchange: Exchange) -> AsyncGenerator[bytes, None]:
    async with aclosing(service.events(request, exchange)) as events:
        async for event in events:
            if isinstance(event, AudioChunk):
                service.note_audio(exchange)
                for piece in split_audio(event.samples, event.sample_rate):
                    yield encode_pcm16(piece)


def _audio(result: RequestResult) -> AudioOutput:
    return next(output for output in result.outputs if isinstance(output, AudioOutput))


def _encode(audio: AudioOutput, response_format: str) -> bytes:
    match response_format:
        case "wav":
            return encode_wav(audio.samples, audio.sample_rate)
        case "flac":
            return encode_flac(audio.samples, audio.sample_rate)
    return encode_pcm16(audio.samples)
