"""`POST /v1/audio/transcriptions` and `/v1/audio/translations`: speech to text."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any, Literal, cast

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from omni_cli.openai_api.replies import TranscriptEvent, TranscriptReply, TranscriptSegment, TranscriptUsage
from omni_cli.openai_api.routes import Route
from omni_cli.requests.contents import Media, Segment, SpeechTask, TranscriptionOptions
from omni_cli.requests.events import TextDelta
from omni_cli.requests.outputs import GenerateRequest, RequestResult, TextOutput
from omni_cli.serve.conversation import count_tokens, get_output
from omni_cli.serve.errors import refuse
from omni_cli.serve.exchange import Exchange, new_id
from omni_cli.serve.media import MediaDecoder
from omni_cli.serve.parsed_route import MULTIPART, RUNNING, content, errors, parsed_routes
from omni_cli.serve.schemas.speech import SoundRequest, TranscriptionRequest, TranslationRequest
from omni_cli.serve.service import Service
from omni_cli.serve.sse import event_stream

_TYPES = {"text": "text/plain", "srt": "application/x-subrip", "vtt": "text/vtt"}


def transcription_routes(service: Service) -> APIRouter:
    router = parsed_routes()

    @router.post(
        Route.TRANSCRIPTIONS,
        response_model=TranscriptReply,
        responses=errors(*RUNNING) | content("The text.", *_TYPES.values(), "text/event-stream"),
    )
    async def audio_transcriptions(body: Annotated[TranscriptionRequest, MULTIPART], request: Request) -> Response:
        """Write down a sound of any length."""
        asks_times = body.timestamp_granularities and body.response_format != "verbose_json"
        needed = "`timestamp_granularities` needs `response_format: verbose_json`"
        excluded = f"`stream` sends text without times: it excludes `{body.response_format}`"
        refuse(
            ("timestamp_granularities", asks_times, needed),
            ("stream", body.stream and body.response_format not in (None, "json", "text"), excluded),
        )
        return await _answer(service, body, "transcribe", request)

    @router.post(
        Route.TRANSLATIONS,
        response_model=TranscriptReply,
        responses=errors(*RUNNING) | content("The text.", *_TYPES.values()),
    )
    async def audio_translations(body: Annotated[TranslationRequest, MULTIPART], request: Request) -> Response:
        """Translate a sound of any length to English text."""
        return await _answer(service, body, "translate", request)

    return router


async def _answer(service: Service, body: SoundRequest, task: SpeechTask, request: Request) -> Response:
    exchange = Exchange.from_scope(request.scope)
    service.check_model(body.model)
    if not service.capabilities.hears:
        raise service.make_refusal("does not transcribe speech: serve a model that does, such as Whisper")
    service.check_prompt_length(len(body.prompt or ""))
    media = await service.decode(partial(_media, body))
    ((samples, sample_rate),) = media["media"].audio
    exchange.lengthen(len(samples) / sample_rate)
    generate = GenerateRequest(
        request_id=new_id("transcription"),
        modalities=frozenset({"text"}),
        lora=service.adapter(body.model),
        prompt=body.prompt or None,
        transcription=TranscriptionOptions(
            task=task,
            timestamps=body.response_format in ("srt", "vtt"),
            speakers=body.response_format == "diarized_json",
            asked=True,
            word_timestamps="word" in getattr(body, "timestamp_granularities", ()),
            **body.request_fields("transcription"),
        ),
        sampling=body.request_fields("sampling"),
        **media,
    )
    if getattr(body, "stream", None):
        return await event_stream(_events(service, generate, exchange), exchange, service.log)
    return _reply(await service.result(generate, exchange), body, task)


def _media(body: SoundRequest, decoder: MediaDecoder) -> dict[str, Any]:
    sound = decoder.speech(body.file.file, "file")
    return {"media": Media(audio=(sound,)), "notes": tuple(decoder.notes)}


async def _events(
    service: Service, request: GenerateRequest, exchange: Exchange
) -> AsyncGenerator[TranscriptEvent, None]:
    async with aclosing(service.events(request, exchange)) as events:
        async for event in events:
            match event:
                case TextDelta():
                    service.note_sent("ttft_s", exchange)
                    yield {"type": "transcript.text.delta", "delta": event.text}
                case RequestResult():
                    counts = cast(TranscriptUsage, {"type": "tokens", **count_tokens(event)})
                    yield {"type": "transcript.text.done", "text": get_output(TextOutput, event).text, "usage": counts}


def _reply(result: RequestResult, body: SoundRequest, task: SpeechTask) -> Response:
    output = get_output(TextOutput, result)
    transcript = output.transcript
    assert transcript is not None
    match body.response_format:
        case "text":
            return PlainTextResponse(f"{output.text}\n")
        case "srt" | "vtt" as form:
            return Response("".join(_subtitles(transcript.segments, form)), media_type=_TYPES[form])
    reply: TranscriptReply = {
        "text": output.text,
        "usage": {"type": "duration", "seconds": math.ceil(transcript.duration_s)},
    }
    if body.response_format in ("verbose_json", "diarized_json"):
        reply |= {"task": task, "duration": round(transcript.duration_s, 3)}
    if body.response_format == "diarized_json":
        reply["segments"] = [
            {
                "type": "transcript.text.segment",
                "id": f"seg_{number}",
                "start": part.start_s,
                "end": part.end_s,
                "text": part.text.strip(),
                "speaker": str(part.speaker),
            }
            for number, part in enumerate(transcript.segments)
        ]
        reply["text"] = "".join(segment.text for segment in transcript.segments).strip()
    if body.response_format == "verbose_json":
        reply["language"] = transcript.language_name
        if "segment" in (getattr(body, "timestamp_granularities", ()) or ("segment",)):
            reply["segments"] = [_segment(number, segment) for number, segment in enumerate(transcript.segments)]
        if transcript.words is not None:
            reply["words"] = [
                {"word": word.text, "start": word.start_s, "end": word.end_s} for word in transcript.words
            ]
    return JSONResponse(reply)


def _segment(number: int, segment: Segment) -> TranscriptSegment:
    """Return a segment with all of OpenAI's fields, which are required: 0 where the model does not tell."""
    return {
        "id": number,
        "seek": segment.seek or 0,
        "start": segment.start_s,
        "end": segment.end_s,
        "text": segment.text,
        "tokens": list(segment.token_ids),
        "temperature": segment.temperature or 0.0,
        "avg_logprob": segment.avg_logprob or 0.0,
        "compression_ratio": segment.compression_ratio or 0.0,
        "no_speech_prob": segment.no_speech_prob or 0.0,
    }


def _subtitles(segments: tuple[Segment, ...], form: Literal["srt", "vtt"]) -> Iterator[str]:
    if form == "vtt":
        yield "WEBVTT\n\n"
    for number, segment in enumerate(segments, start=1):
        times = f"{_clock(segment.start_s)} --> {_clock(segment.end_s)}"
        yield f"{number}\n{times.replace('.', ',')}\n" if form == "srt" else f"{times}\n"
        yield f"{segment.text.strip()}\n\n"


def _clock(seconds: float) -> str:
    minutes, milliseconds = divmod(round(seconds * 1000), 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{milliseconds / 1000:06.3f}"
