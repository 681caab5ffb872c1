"""`POST /v1/completions`: texts that the model continues, without its chat template."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from omni_cli.openai_api.replies import Completion
from omni_cli.openai_api.routes import Route
from omni_cli.outputs import GenerateRequest, RequestResult, TextDelta
from omni_cli.serve.completion_reply import CompletionParts, CompletionReply
from omni_cli.serve.errors import APIError
from omni_cli.serve.exchange import Exchange
from omni_cli.serve.parsed_route import parsed_routes
from omni_cli.serve.routes.documented import RUNNING, content, errors
from omni_cli.serve.schemas.completions import CompletionRequest, StreamOptions
from omni_cli.serve.service import Service, seeded_copies
from omni_cli.serve.sse import DONE, event_stream


def completion_routes(service: Service) -> APIRouter:
    router = parsed_routes()

    @router.post(
        Route.COMPLETIONS,
        response_model=Completion,
        responses=errors(*RUNNING) | content("The reply, whole or as events.", "text/event-stream"),
    )
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Continue prompts; of several completions, the first has the request's seed, each following one the next."""
        exchange = Exchange.from_scope(request.scope)
        _check(service, body)
        reply = CompletionReply(
            model=service.config.name if body.model is None else body.model,
            n=body.n or 1,
            num_logprobs=body.logprobs,
            echoes=bool(body.echo),
            wants_new=body.max_tokens != 0,
            wants_token_ids=bool(body.return_token_ids),
            seed=service.choose_seed(body.seed, exchange),
        )
        requests = _generate_requests(body, reply, service.adapter(body.model))
        if body.stream:
            documents = _stream(service, requests, reply, exchange, body.stream_options or StreamOptions())
            return await event_stream(documents, exchange, service.log, end=DONE)
        return JSONResponse(reply.whole(await service.results(requests, exchange)))

    return router


def _check(service: Service, body: CompletionRequest) -> None:
    service.check_sampled(body)
    n = body.n or 1
    service.check_count(n * len(body.prompts), "prompt")
    service.check_prompt_length(sum(map(len, body.prompts)))
    if body.best_of is not None and body.best_of != n:
        raise APIError(400, "`best_of` is only supported as many as `n`", code="invalid_value", param="best_of")
    if body.max_tokens == 0 and not body.echo:
        raise APIError(400, "`max_tokens: 0` needs `echo: true`", code="invalid_value", param="max_tokens")


def _generate_requests(body: CompletionRequest, reply: CompletionReply, lora: str) -> list[GenerateRequest]:
    requests = []
    for number, prompt in enumerate(body.prompts):
        request = GenerateRequest(
            request_id=f"{reply.id}-{number}",
            prompt=prompt if isinstance(prompt, str) else None,
            prompt_token_ids=None if isinstance(prompt, str) else prompt,
            raw=True,
            add_special_tokens=body.add_special_tokens,
            wants_prompt=reply.echoes or reply.wants_token_ids,
            seed=reply.seed,
            lora=lora,
            modalities=frozenset({"text"}),
            sampling=body.sampling(),
            cache_salt=body.cache_salt,
        )
        requests += seeded_copies(request, reply.n)
    return requests


async def _stream(
    service: Service,
    requests: list[GenerateRequest],
    reply: CompletionReply,
    exchange: Exchange,
    options: StreamOptions,
) -> AsyncGenerator[Completion, None]:
    parts = [CompletionParts(reply, index) for index in range(len(requests))]
    results: dict[int, RequestResult] = {}
    async with aclosing(service.events_of_all(requests, exchange)) as events:
        async for index, event in events:
            if isinstance(event, TextDelta):
                service.note_text(exchange)
                yield reply.chunk(parts[index].more(event), event if options.continuous_usage_stats else None)
            elif isinstance(event, RequestResult):
                results[index] = event
                yield reply.chunk(parts[index].end(event))
    if options.include_usage:
        yield reply.usage([results[index] for index in range(len(requests))])
