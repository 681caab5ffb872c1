"""`POST /tokenize` and `/detokenize`: the tokenizer and the chat template of the stage that answers with text."""

from __future__ import annotations

import dataclasses
import functools

from fastapi import APIRouter, Request

from omni_cli.openai_api.replies import DetokenizedText, Tokens
from omni_cli.openai_api.routes import Route
from omni_cli.requests.contents import TextOptions
from omni_cli.requests.outputs import GenerateRequest, PromptTokens, TextOutput
from omni_cli.serve.errors import APIError
from omni_cli.serve.exchange import Exchange, new_id
from omni_cli.serve.media import MediaDecoder
from omni_cli.serve.parsed_route import RUNNING, errors, parsed_routes
from omni_cli.serve.routes.chat import check_chat, text_request
from omni_cli.serve.schemas.chat import DetokenizeRequest, TokenizeRequest
from omni_cli.serve.service import Service


def token_routes(service: Service) -> APIRouter:
    router = parsed_routes()

    @router.post(Route.TOKENIZE, responses=errors(*RUNNING))
    async def tokenize(body: TokenizeRequest, request: Request) -> Tokens:
        """Tokenize a prompt, or the prompt that messages become."""
        found = await _prompt(service, await _generate_request(service, body), request)
        return {
            "count": len(found.token_ids),
            "max_model_len": service.supervisor.stages[0].settings["max_model_len"],
            "tokens": list(found.token_ids),
            "token_strs": list(found.token_strs) if body.return_token_strs else None,
        }

    @router.post(Route.DETOKENIZE, responses=errors(*RUNNING))
    async def detokenize(body: DetokenizeRequest, request: Request) -> DetokenizedText:
        """Return the text of tokens."""
        service.check_model(body.model)
        service.check_makes("text")
        service.check_prompt_length(len(body.tokens))
        generate = GenerateRequest(
            new_id("detokenize"), text=TextOptions(prompt_token_ids=tuple(body.tokens), raw=True)
        )
        return {"prompt": (await _prompt(service, generate, request)).text}

    return router


async def _generate_request(service: Service, body: TokenizeRequest) -> GenerateRequest:
    if (body.prompt is None) == (body.messages is None):
        raise APIError(400, "send one of `prompt` and `messages`", code="invalid_value", param="prompt")
    name = new_id("tokenize")
    if body.prompt is None:
        request = await service.decode(functools.partial(_chat, service, body, name))
    else:
        service.check_model(body.model)
        service.check_makes("text")
        service.check_prompt_length(len(body.prompt))
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
