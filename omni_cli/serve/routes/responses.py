"""`POST /v1/responses`: a chat in OpenAI's newer shape, without anything that the server would have to keep."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from omni_cli.openai_api.replies import ResponseDocument
from omni_cli.openai_api.routes import Route
from omni_cli.outputs import GenerateRequest, RequestResult, TextDelta
from omni_cli.serve.errors import APIError
from omni_cli.serve.exchange import Exchange
from omni_cli.serve.media import MediaDecoder
from omni_cli.serve.parsed_route import parsed_routes
from omni_cli.serve.response_reply import ResponseReply
from omni_cli.serve.routes.chat import check_chat, text_request
from omni_cli.serve.routes.documented import RUNNING, content, errors
from omni_cli.serve.schemas.responses import ResponseRequest
from omni_cli.serve.service import Service
from omni_cli.serve.sse import event_stream


def response_routes(service: Service) -> APIRouter:
    router = parsed_routes()

    @router.post(
        Route.RESPONSES,
        response_model=ResponseDocument,
        responses=errors(*RUNNING) | content("The response, whole or as events.", "text/event-stream"),
    )
    async def responses(body: ResponseRequest, request: Request) -> Response:
        """Answer a conversation, as a response of items."""
        exchange = Exchange.from_scope(request.scope)
        model = service.config.name if body.model is None else body.model
        reply = ResponseReply(body, model, service.choose_seed(body.seed, exchange))
        try:
            generate = await service.decode(functools.partial(_generate_request, service, reply))
        except APIError as error:
            # The fields of a chat that are named otherwise here.
            if error.param is not None and error.param.startswith("messages"):
                error.param = "input"
            raise
        documents = _events(service, generate, reply, exchange)
        if body.stream:
            return await event_stream(documents, exchange, service.log, failed=reply.failed)
        async with aclosing(documents):
            async for document in documents:
                last = document
        return JSONResponse(last["response"])

    return router


def _generate_request(service: Service, reply: ResponseReply, decoder: MediaDecoder) -> GenerateRequest:
    chat = reply.request.as_chat()
    check_chat(service, chat)
    return text_request(service, chat, reply.id, reply.seed, decoder)


async def _events(
    service: Service, request: GenerateRequest, reply: ResponseReply, exchange: Exchange
) -> AsyncGenerator[dict[str, Any], None]:
    begun = False
    async with aclosing(service.events(request, exchange)) as events:
        async for event in events:
            if not begun:
                begun = True
                for document in reply.begin():
                    yield document
            match event:
                case TextDelta():
                    service.note_text(exchange)
                    for document in reply.add(event):
                        yield document
                case RequestResult():
                    for document in reply.end(event):
                        yield document
