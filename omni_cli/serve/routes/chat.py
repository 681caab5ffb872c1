"""`POST /v1/chat/completions`: text, and speech on request."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from omni_cli.engine.describing import frame_chooser
from omni_cli.openai_api.replies import ChatCompletion, ChatCompletionChunk
from omni_cli.openai_api.routes import Route
from omni_cli.requests.contents import SpeechOptions, TextOptions
from omni_cli.requests.outputs import AudioChunk, GenerateRequest, Modality, RequestResult, TextDelta
from omni_cli.serve.chat_reply import ChatReply, token_usage
from omni_cli.serve.conversation import read_conversation
from omni_cli.serve.errors import APIError
from omni_cli.serve.exchange import Exchange
from omni_cli.serve.media import MediaDecoder
from omni_cli.serve.parsed_route import RUNNING, content, errors, parsed_routes
from omni_cli.serve.schemas.chat import ChatCompletionRequest, NamedTool
from omni_cli.serve.schemas.completions import StreamOptions
from omni_cli.serve.schemas.fields import voice_name
from omni_cli.serve.service import Service, seeded_copies
from omni_cli.serve.sse import END_OF_STREAM, event_stream


def chat_routes(service: Service) -> APIRouter:
    router = parsed_routes()

    @router.post(
        Route.CHAT,
        response_model=ChatCompletion,
        responses=errors(*RUNNING) | content("The reply, whole or as events.", "text/event-stream"),
    )
    async def chat_completions(body: ChatCompletionRequest, request: Request) -> Response:
        """Answer a conversation."""
        exchange = Exchange.from_scope(request.scope)
        check_chat(service, body)
        model = service.config.name if body.model is None else body.model
        reply = ChatReply(body, model, service.choose_seed(body.seed, exchange))
        generate = await service.decode(functools.partial(_generate_request, service, body, reply))
        requests = seeded_copies(generate, body.n or 1)
        if body.stream:
            documents = _stream(service, requests, reply, exchange, body.stream_options or StreamOptions())
            return await event_stream(documents, exchange, service.log, end=END_OF_STREAM)
        results = await service.results(requests, exchange)
        if not reply.wants_audio:
            return JSONResponse(reply.completion(results))
        service.remember(reply, results[0])
        return JSONResponse(await asyncio.to_thread(reply.completion, results))

    return router


def check_chat(service: Service, body: ChatCompletionRequest) -> None:
    """Raise `APIError` for fields that contradict each other or the served model."""
    service.check_sampled(body)
    if body.modalities is not None and "audio" in body.modalities:
        service.check_makes("audio")
        if body.stream and body.audio is not None and body.audio.format != "pcm16":
            raise APIError(
                400,
                "streamed speech is `pcm16`: other formats store their length first",
                code="unsupported_value",
                param="audio.format",
            )
    elif body.audio is not None:
        raise APIError(400, '`audio` needs `modalities: ["text", "audio"]`', code="invalid_value", param="audio")
    if body.top_logprobs and not body.logprobs:
        raise APIError(400, "`top_logprobs` needs `logprobs: true`", code="invalid_value", param="top_logprobs")
    if body.add_generation_prompt and body.continue_final_message:
        message = "`add_generation_prompt` begins an answer, and `continue_final_message` none: only one can be true"
        raise APIError(400, message, code="invalid_value", param="continue_final_message")
    _check_tools(body)
    if (body.n or 1) > 1 and "audio" in (body.modalities or ()):
        raise APIError(400, '`n` needs `modalities: ["text"]`', code="invalid_value", param="n")


def _check_tools(body: ChatCompletionRequest) -> None:
    choice, names = body.tool_choice, [tool.function.name for tool in body.tools or ()]
    message, param = "", "tool_choice"
    if body.tools and "audio" in (body.modalities or ()):
        message, param = '`tools` need `modalities: ["text"]`: a call would be spoken', "tools"
    elif isinstance(choice, NamedTool) and choice.function.name not in names:
        message = f"`tool_choice` names `{choice.function.name}`, which `tools` does not have"
    elif choice == "required" and not names:
        message = "`tool_choice` is `required`, and there are no `tools`"
    if message:
        raise APIError(400, message, code="invalid_value", param=param)


def _generate_request(
    service: Service, body: ChatCompletionRequest, reply: ChatReply, decoder: MediaDecoder
) -> GenerateRequest:
    request = text_request(service, body, reply.id, reply.seed, decoder)
    if not reply.wants_audio:
        return request
    return dataclasses.replace(
        request,
        # Text is generated on the way to speech and becomes its transcript.
        modalities=frozenset[Modality]({"text", "audio"}),
        speech=dataclasses.replace(
            request.speech,
            speaker=None if body.audio is None else voice_name(body.audio.voice),
            **body.request_fields("speech"),
        ),
    )


def text_request(
    service: Service, body: ChatCompletionRequest, request_id: str, seed: int, decoder: MediaDecoder
) -> GenerateRequest:
    """Return the request for a conversation's answer in text; for use in a thread, because it decodes media."""
    decoder.choose = frame_chooser(service.config, (body.media_io_kwargs or {}).get("video"))
    conversation = read_conversation(body.messages, decoder, service.transcripts)
    service.check_prompt_length(sum(len(part.text) for turn in conversation["messages"] for part in turn.parts))
    return GenerateRequest(
        request_id=request_id,
        lora=service.adapter(body.model),
        seed=seed,
        modalities=frozenset({"text"}),
        sampling=body.sampling(),
        text=TextOptions(
            chat_template_kwargs=body.chat_template_kwargs or {},
            reasoning_effort=body.reasoning_effort,
            tool_use=body.tool_use(),
            split_reply=True,
            add_generation_prompt=body.add_generation_prompt is not False and not body.continue_final_message,
            continue_final_message=bool(body.continue_final_message),
            **body.request_fields("text"),
        ),
        cache_salt=body.cache_salt,
        speech=SpeechOptions(stream_audio=body.stream),
        **conversation,
    )


async def _stream(
    service: Service,
    requests: Sequence[GenerateRequest],
    reply: ChatReply,
    exchange: Exchange,
    options: StreamOptions,
) -> AsyncGenerator[ChatCompletionChunk, None]:
    begun: set[int] = set()
    results: list[RequestResult] = []
    async with aclosing(service.events_of_all(requests, exchange)) as events:
        async for index, event in events:
            if index not in begun:
                begun.add(index)
                yield reply.begin(index)
            match event:
                case TextDelta():
                    service.note_text(exchange)
                    chunk = reply.text(event, index)
                    if options.continuous_usage_stats:
                        chunk["usage"] = token_usage(event.num_input_tokens, event.num_output_tokens)
                    yield chunk
                case AudioChunk():
                    service.note_audio(exchange)
                    for piece in reply.audio(event.samples, event.sample_rate):
                        yield piece
                case RequestResult():
                    service.remember(reply, event)
                    results.append(event)
                    yield reply.end(event, index)
    if options.include_usage:
        yield reply.usage(results)
