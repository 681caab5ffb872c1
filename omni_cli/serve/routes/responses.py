"""`POST /v1/responses`: a chat in OpenAI's newer shape, without anything that the server would have to keep."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from omni_cli.openai_api.replies import ResponseDocument
from omni_cli.openai_api.routes import Route
from omni_cli.requests.contents import ToolCallDelta
from omni_cli.requests.events import TextDelta
from omni_cli.requests.outputs import GenerateRequest, RequestResult, TextOutput, TokenLogprobs
from omni_cli.serve.conversation import count_tokens, get_output, token_logprobs
from omni_cli.serve.errors import APIError, naming, refuse
from omni_cli.serve.exchange import Exchange, new_id, unix_now
from omni_cli.serve.media import MediaDecoder
from omni_cli.serve.parsed_route import RUNNING, content, errors, parsed_routes
from omni_cli.serve.routes.chat import check_chat, text_request
from omni_cli.serve.schemas.responses import LOGPROBS, ResponseRequest
from omni_cli.serve.service import Service
from omni_cli.serve.sse import event_stream

Document = dict[str, Any]
# Settings of the request that a response repeats.
_REPEATED_FIELDS = ("instructions", "max_output_tokens", "metadata", "temperature", "top_p", "top_logprobs")
# Of a chat's fields.
_OWN_NAMES = {
    "messages": "input", "max_tokens": "max_output_tokens", "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
}  # fmt: skip
_SHOWN_FIELDS = {*_REPEATED_FIELDS, "tools", "tool_choice", "text", "reasoning"}
# An item's text by its type, in the item and in the names of its events.
_PARTS = {"reasoning": "reasoning_text", "message": "output_text"}


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
        with naming(_OWN_NAMES):
            generate = await service.decode(functools.partial(_generate_request, service, reply))
            documents = _events(service, generate, reply, exchange)
            if body.stream:
                return await event_stream(documents, exchange, service.log, failed=reply.make_failure_event)
            async with aclosing(documents):
                async for document in documents:
                    last = document
        return JSONResponse(last["response"])

    return router


def _generate_request(service: Service, reply: ResponseReply, decoder: MediaDecoder) -> GenerateRequest:
    is_vain = reply.request.top_logprobs and not reply.request.wants_logprobs
    refuse(("top_logprobs", is_vain, f'`top_logprobs` needs `include: ["{LOGPROBS}"]`'))
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
                    service.note_sent("ttft_s", exchange)
                    for document in reply.add(event):
                        yield document
                case RequestResult():
                    for document in reply.end(event):
                        yield document


@dataclass
class ResponseReply:
    """One response; both its events and the whole come from the same pieces of text."""

    request: ResponseRequest
    model: str
    seed: int
    id: str = field(default_factory=lambda: new_id("resp"))
    created: int = field(default_factory=unix_now)
    _items: list[Document] = field(default_factory=list)
    _open: Document | None = None
    _call_index: int | None = None
    _num_events: int = 0

    def begin(self) -> Iterator[Document]:
        """Yield the first events."""
        yield self._event("response.created", response=self.document("in_progress"))
        yield self._event("response.in_progress", response=self.document("in_progress"))

    def add(self, new: TextDelta) -> Iterator[Document]:
        """Take more of the answer, and yield the events that tell of it."""
        if new.reasoning:
            yield from self._add_text("reasoning", new.reasoning, ())
        if new.text:
            yield from self._add_text("message", new.text, new.logprobs)
        for call in new.tool_calls:
            yield from self._add_call(call)

    def end(self, result: RequestResult) -> Iterator[Document]:
        """Close the last item, and yield the last events; the last one has the whole response."""
        text = get_output(TextOutput, result)
        status = "incomplete" if text.finish_reason == "length" else "completed"
        if not self._items:  # an answer of nothing is a message without words
            yield from self._open_item("message")
        yield from self._close(status)
        document = self.document(status) | {
            "completed_at": unix_now() if status == "completed" else None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "usage": {
                **count_tokens(result),
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens_details": {"reasoning_tokens": text.num_reasoning_tokens},
            },
        }
        yield self._event(f"response.{status}", response=document)

    def make_failure_event(self, error: APIError) -> Document:
        """Return the event of a failure midway."""
        return self._event("error", **{name: error.body()["error"][name] for name in ("code", "message", "param")})

    def document(self, status: str) -> Document:
        """Return the response so far."""
        body = self.request.model_dump(mode="json", by_alias=True, include=_SHOWN_FIELDS)
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self.model,
            "output": list(self._items),
            **{name: body[name] for name in _REPEATED_FIELDS},
            "tools": body["tools"] or [],
            "tool_choice": body["tool_choice"] or ("auto" if body["tools"] else "none"),
            "parallel_tool_calls": self.request.parallel_tool_calls is not False,
            "text": body["text"] if self.request.text and self.request.text.format else {"format": {"type": "text"}},
            "reasoning": body["reasoning"] or {"effort": None, "summary": None},
            "truncation": "disabled",
            "previous_response_id": None,
            "background": False,
            "store": False,
            "usage": None,
            "seed": self.seed,
        }

    def _event(self, kind: str, **fields: object) -> Document:
        self._num_events += 1
        return {"type": kind, "sequence_number": self._num_events - 1, **fields}

    def _add_text(self, kind: str, text: str, logprobs: Sequence[TokenLogprobs]) -> Iterator[Document]:
        if self._open is None or self._open["type"] != kind:
            yield from self._open_item(kind)
        assert self._open is not None
        (part,) = self._open["content"]
        part["text"] += text
        more: Document = {"delta": text}
        if kind == "message":
            more["logprobs"] = token_logprobs(logprobs, self.request.top_logprobs or 0)
            part["logprobs"] += more["logprobs"]
        yield self._event(f"response.{_PARTS[kind]}.delta", **self._place(), content_index=0, **more)

    def _add_call(self, call: ToolCallDelta) -> Iterator[Document]:
        if self._open is None or self._open["type"] != "function_call" or self._call_index != call.index:
            yield from self._open_item("function_call", call_id=call.id or new_id("call"), name=call.name or "")
            self._call_index = call.index
        assert self._open is not None
        if call.arguments:
            self._open["arguments"] += call.arguments
            yield self._event("response.function_call_arguments.delta", **self._place(), delta=call.arguments)

    def _place(self) -> Document:
        assert self._open is not None
        return {"item_id": self._open["id"], "output_index": len(self._items) - 1}

    def _open_item(self, kind: str, **fields: object) -> Iterator[Document]:
        yield from self._close("completed")
        prefix = {"message": "msg", "reasoning": "rs", "function_call": "fc"}[kind]
        self._open = {"type": kind, "id": new_id(prefix), "status": "in_progress", **fields}
        match kind:
            case "message":
                self._open |= {"role": "assistant", "content": []}
            case "reasoning":
                self._open |= {"summary": [], "content": []}
            case _:
                self._open["arguments"] = ""
        self._items.append(self._open)
        yield self._event("response.output_item.added", output_index=len(self._items) - 1, item=deepcopy(self._open))
        if kind in _PARTS:
            part: Document = {"type": _PARTS[kind], "text": ""}
            if kind == "message":
                part |= {"annotations": [], "logprobs": []}
            self._open["content"].append(part)
            yield self._event("response.content_part.added", **self._place(), content_index=0, part=dict(part))

    def _close(self, status: str) -> Iterator[Document]:
        """End the item that is open, if any."""
        item = self._open
        if item is None:
            return
        place, kind = self._place(), item["type"]
        if kind in _PARTS:
            (part,) = item["content"]
            more = {"logprobs": part["logprobs"]} if kind == "message" else {}
            yield self._event(f"response.{_PARTS[kind]}.done", **place, content_index=0, text=part["text"], **more)
            yield self._event("response.content_part.done", **place, content_index=0, part=part)
        else:
            yield self._event(
                "response.function_call_arguments.done", **place, name=item["name"], arguments=item["arguments"]
            )
        item["status"] = status
        self._open = None
        yield self._event("response.output_item.done", output_index=place["output_index"], item=item)
