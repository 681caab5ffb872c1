"""`POST /v1/chat/completions`: text, and speech on request; `/tokenize` and `/detokenize`: its tokenizer."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from omni_cli.engine.describing import frame_chooser
from omni_cli.openai_api.replies import ChatCompletion, ChatCompletionChunk, DetokenizedText, Tokens
from omni_cli.openai_api.routes import Route
from omni_cli.requests.contents import SpeechOptions, TextOptions
from omni_cli.requests.events import AudioChunk, TextDelta
from omni_cli.requests.outputs import GenerateRequest, Modality, PromptTokens, RequestResult, TextOutput
from omni_cli.serve.conversation import ChatReply, read_conversation, token_usage
from omni_cli.serve.errors import APIError, naming, refuse
from omni_cli.serve.exchange import Exchange, new_id
from omni_cli.serve.media import MediaDecoder
from omni_cli.serve.parsed_route import RUNNING, TEXT_REPLY, errors, parsed_routes
from omni_cli.serve.schemas.chat import ChatCompletionRequest, DetokenizeRequest, NamedTool, TokenizeRequest
from omni_cli.serve.schemas.completions import StreamOptions
from omni_cli.serve.schemas.fields import voice_name
from omni_cli.serve.service import Service
from omni_cli.serve.sse import END_OF_STREAM, event_stream


def chat_routes(service: Service) -> APIRouter:
    router = parsed_routes()

    @router.post(Route.CHAT, response_model=ChatCompletion, responses=errors(*RUNNING) | TEXT_REPLY)
    async def chat_completions(body: ChatCompletionRequest, request: Request) -> Response:
        """Answer a conversation."""
        exchange = Exchange.from_scope(request.scope)
        check_chat(service, body)
        reply = ChatReply(body, service.config.name, service.choose_seed(body.seed, exchange))
        generate = await service.decode(functools.partial(_generate_request, service, body, reply))
        requests = service.choices(generate, body.n or 1)
        with naming({} if body.max_completion_tokens is None else {"max_tokens": "max_completion_tokens"}):
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
    speaks = "audio" in (body.modalities or ())
    if speaks:
        service.check_makes("audio")
        if body.stream and body.audio is not None and body.audio.format != "pcm16":
            message = "streamed speech is `pcm16`: other formats store their length first"
            raise APIError(400, message, code="unsupported_value", param="audio.format")
    names, choice = [tool.function.name for tool in body.tools or ()], body.tool_choice
    named = choice.function.name if isinstance(choice, NamedTool) else None
    maxima = {body.max_tokens, body.max_completion_tokens} - {None}
    two_ends = "`add_generation_prompt` begins an answer, and `continue_final_message` none: only one can be true"
    refuse(
        ("audio", body.audio is not None and not speaks, '`audio` needs `modalities: ["text", "audio"]`'),
        ("max_tokens", len(maxima) > 1, "`max_tokens` and `max_completion_tokens` differ: send one"),
        ("top_logprobs", body.top_logprobs and not body.logprobs, "`top_logprobs` needs `logprobs: true`"),
        ("continue_final_message", body.add_generation_prompt and body.continue_final_message, two_ends),
        ("tools", names and speaks, '`tools` need `modalities: ["text"]`: a call would be spoken'),
        ("tool_choice", named and named not in names, f"`tool_choice` names `{named}`, which `tools` does not have"),
        ("tool_choice", choice == "required" and not names, "`tool_choice` is `required`, and there are no `tools`"),
        ("n", speaks and (body.n or 1) > 1, '`n` needs `modalities: ["text"]`'),
    )


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
                    service.note_sent("ttft_s", exchange)
                    chunk = reply.text(event, index)
                    if options.continuous_usage_stats:
                        chunk["usage"] = token_usage(event.num_input_tokens, event.num_output_tokens)
                    yield chunk
                case AudioChunk():
                    service.note_sent("ttfp_s", exchange)
                    for piece in reply.audio(event.samples, event.sample_rate):
                        yield piece
                case RequestResult():
                    service.remember(reply, event)
                    results.append(event)
                    yield reply.end(event, index)
    if options.include_usage:
        yield reply.usage(results)


def token_routes(service: Service) -> APIRouter:
    router = parsed_routes()

    @router.post(Route.TOKENIZE, responses=errors(*RUNNING))
    async def tokenize(body: TokenizeRequest, request: Request) -> Tokens:
        """Tokenize a prompt, or the prompt that messages become."""
        found = await _prompt(service, await _prompt_request(service, body), request)
        return {
            "count": len(found.token_ids),
            "max_model_len": service.supervisor.stages[0].settings["max_model_len"],
            "tokens": list(found.token_ids),
            "token_strs": list(found.token_strs) if body.return_token_strs else None,
        }

    @router.post(Route.DETOKENIZE, responses=errors(*RUNNING))
    async def detokenize(body: DetokenizeRequest, request: Request) -> DetokenizedText:
        """Return the text of tokens."""
        service.check(body.model, "text", len(body.tokens))
        generate = GenerateRequest(
            new_id("detokenize"), text=TextOptions(prompt_token_ids=tuple(body.tokens), raw=True)
        )
        return {"prompt": (await _prompt(service, generate, request)).text}

    return router


async def _prompt_request(service: Service, body: TokenizeRequest) -> GenerateRequest:
    is_one = (body.prompt is None) != (body.messages is None)
    refuse(("prompt", not is_one, "send one of `prompt` and `messages`"))
    name = new_id("tokenize")
    if body.prompt is None:
        request = await service.decode(functools.partial(_chat, service, body, name))
    else:
        service.check(body.model, "text", len(body.prompt))
        request = GenerateRequest(name, body.prompt, text=TextOptions(raw=True))
    return dataclasses.replace(
        request, text=dataclasses.replace(request.text, add_special_tokens=body.add_special_tokens)
    )


def _chat(service: Service, body: TokenizeRequest, name: str, decoder: MediaDecoder) -> GenerateRequest:
    chat = body.as_chat()
    check_chat(service, chat)
    return text_request(service, chat, name, 0, decoder)


async def _prompt(service: Service, generate: GenerateRequest, request: Request) -> PromptTokens:
    generate = dataclasses.replace(
        generate,
        text=dataclasses.replace(generate.text, prompt_only=True, split_reply=False),
        speech=dataclasses.replace(generate.speech, stream_audio=False),
        modalities=frozenset({"text"}),
    )
    result = await service.result(generate, Exchange.from_scope(request.scope))
    (output,) = result.outputs
    assert isinstance(output, TextOutput) and output.prompt is not None
    return output.prompt
