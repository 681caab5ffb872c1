"""`POST /v1/completions`: texts that the model continues, without its chat template."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from omni_cli.openai_api.replies import Completion, CompletionChoice, CompletionLogprobs, Usage
from omni_cli.openai_api.routes import Route
from omni_cli.requests.contents import TextOptions
from omni_cli.requests.events import TextDelta
from omni_cli.requests.outputs import GenerateRequest, PromptTokens, RequestResult, TextOutput, TokenLogprobs
from omni_cli.serve.conversation import TextReply, get_output, get_text_and_logprob, token_usage
from omni_cli.serve.errors import refuse
from omni_cli.serve.exchange import Exchange
from omni_cli.serve.parsed_route import RUNNING, TEXT_REPLY, errors, parsed_routes
from omni_cli.serve.schemas.completions import CompletionRequest, StreamOptions
from omni_cli.serve.service import Service
from omni_cli.serve.sse import END_OF_STREAM, event_stream


def completion_routes(service: Service) -> APIRouter:
    router = parsed_routes()

    @router.post(Route.COMPLETIONS, response_model=Completion, responses=errors(*RUNNING) | TEXT_REPLY)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Continue prompts; of several completions, the first has the request's seed, each following one the next."""
        exchange = Exchange.from_scope(request.scope)
        _check(service, body)
        reply = CompletionReply(body, service.config.name, service.choose_seed(body.seed, exchange))
        requests = _generate_requests(service, body, reply, service.adapter(body.model))
        if body.stream:
            documents = _stream(service, requests, reply, exchange, body.stream_options or StreamOptions())
            return await event_stream(documents, exchange, service.log, end=END_OF_STREAM)
        return JSONResponse(reply.build(await service.results(requests, exchange)))

    return router


def _check(service: Service, body: CompletionRequest) -> None:
    service.check_sampled(body)
    n = body.n or 1
    service.check_count(n * len(body.prompts), "prompt")
    service.check_prompt_length(sum(map(len, body.prompts)))
    refuse(
        ("best_of", body.best_of not in (None, n), "`best_of` is only supported as many as `n`"),
        ("max_tokens", body.max_tokens == 0 and not body.echo, "`max_tokens: 0` needs `echo: true`"),
    )


def _generate_requests(
    service: Service, body: CompletionRequest, reply: CompletionReply, lora: str
) -> list[GenerateRequest]:
    requests = []
    for number, prompt in enumerate(body.prompts):
        request = GenerateRequest(
            request_id=f"{reply.id}-{number}",
            prompt=prompt if isinstance(prompt, str) else None,
            text=TextOptions(
                prompt_token_ids=None if isinstance(prompt, str) else prompt,
                raw=True,
                add_special_tokens=body.add_special_tokens,
                wants_prompt=bool(body.echo or body.return_token_ids),
            ),
            seed=reply.seed,
            lora=lora,
            modalities=frozenset({"text"}),
            sampling=body.sampling(),
            cache_salt=body.cache_salt,
        )
        requests += service.choices(request, reply.n)
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
                service.note_sent("ttft_s", exchange)
                yield reply.chunk(parts[index].more(event), event if options.continuous_usage_stats else None)
            elif isinstance(event, RequestResult):
                results[index] = event
                yield reply.chunk(parts[index].end(event))
    if options.include_usage:
        yield reply.usage([results[index] for index in range(len(requests))])


class CompletionReply(TextReply):
    """The reply to one request of several prompts. Without `wants_new`, only the prompts are returned."""

    def __init__(self, body: CompletionRequest, profile: str, seed: int) -> None:
        super().__init__("cmpl", body, profile, seed)
        self.body, self.n, self.wants_new = body, body.n or 1, body.max_tokens != 0

    def build(self, results: Sequence[RequestResult]) -> Completion:
        """Build the whole reply."""
        choices = [CompletionParts(self, index).end(result) for index, result in enumerate(results)]
        completion: Completion = self.document("text_completion", choices, usage=self._usage(results))
        return completion

    def chunk(self, choice: CompletionChoice, so_far: TextDelta | None = None) -> Completion:
        """Build a chunk with a part of one choice, and with the usage `so_far`."""
        document: Completion = self.document("text_completion", [choice])
        if so_far is not None:
            num_output = so_far.num_output_tokens if self.wants_new else 0
            document["usage"] = token_usage(so_far.num_input_tokens, num_output, 0)
        return document

    def usage(self, results: Sequence[RequestResult]) -> Completion:
        """Build the chunk after the last one that `stream_options.include_usage` asks for."""
        chunk: Completion = self.document("text_completion", [], usage=self._usage(results))
        return chunk

    def _usage(self, results: Sequence[RequestResult]) -> Usage:
        """Count each prompt once, and the tokens of all its completions."""
        num_input = sum(result.stages[0].num_input_tokens or 0 for result in results[:: self.n])
        num_output = sum(result.stages[0].num_output_tokens or 0 for result in results) if self.wants_new else 0
        return token_usage(num_input, num_output, 0)


class CompletionParts:
    """One choice of a reply, as a whole or part after part."""

    def __init__(self, reply: CompletionReply, index: int) -> None:
        self._reply = reply
        self._index = index
        self._text = ""
        self._num_logprobs = 0
        self._has_prompt = False
        self._offset = 0

    def more(self, new: TextDelta) -> CompletionChoice:
        """Return new text, the first time after the prompt."""
        return self._part(new.prompt, new.text, new.logprobs)

    def end(self, result: RequestResult) -> CompletionChoice:
        """Return what `more` has not, with the finish reason."""
        output = get_output(TextOutput, result)
        # Those of the text; the stage has generated a stop string, too.
        logprobs = (result.stages[0].output_logprobs or ())[self._num_logprobs : len(output.token_ids)]
        choice = self._part(output.prompt, output.text[len(self._text) :], logprobs)
        # The engine was asked for one token where the request wants none.
        choice["finish_reason"] = output.finish_reason if self._reply.wants_new else "length"
        if self._reply.body.return_token_ids and output.prompt is not None:
            choice["prompt_token_ids"] = list(output.prompt.token_ids)
            choice["token_ids"] = list(output.token_ids) if self._reply.wants_new else []
        return choice

    def _part(self, prompt: PromptTokens | None, text: str, logprobs: Sequence[TokenLogprobs]) -> CompletionChoice:
        self._text += text
        self._num_logprobs += len(logprobs)
        if not self._reply.wants_new:
            text, logprobs = "", ()
        if self._reply.body.echo and prompt is not None and not self._has_prompt:
            self._has_prompt = True
            text, logprobs = prompt.text + text, (*prompt.logprobs, *logprobs)
        return {"index": self._index, "text": text, "logprobs": self._logprobs(logprobs), "finish_reason": None}

    def _logprobs(self, tokens: Sequence[TokenLogprobs]) -> CompletionLogprobs | None:
        num_top = self._reply.body.logprobs
        if num_top is None:
            return None
        found: CompletionLogprobs = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
        for candidates in tokens:  # the token itself, then the most likely ones without it
            text, logprob = get_text_and_logprob(candidates[0])
            has_one = not math.isnan(logprob)
            found["text_offset"].append(self._offset)
            found["tokens"].append(text)
            found["token_logprobs"].append(logprob if has_one else None)
            found["top_logprobs"].append(
                dict(map(get_text_and_logprob, candidates[: num_top + 1])) if has_one else None
            )
            self._offset += len(text)
        return found
