"""`POST /tokenize` and `/detokenize`, as vLLM has them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from omni_cli.config.sampling_keys import TokenId
from omni_cli.serve.schemas import chat
from omni_cli.serve.schemas.fields import Items, Only, Strict
from omni_cli.serve.schemas.tools import Tools


class TokenizeRequest(Strict):
    """Has `prompt` or `messages`."""

    model: str | None = Field(None, description="The model's name in `GET /v1/models`.")
    prompt: str | None = None
    messages: Annotated[Items[chat.Message], Field(min_length=1, max_length=1000)] | None = None
    add_special_tokens: bool | None = Field(None, description="Default: true for a prompt, false for messages.")
    return_token_strs: bool | None = None

    add_generation_prompt: bool | None = Field(None, description="Begin the answer to the messages. Default: true.")
    chat_template_kwargs: chat.TemplateVariables | None = None
    media_io_kwargs: chat.MediaIO | None = None
    tools: Tools | None = None
    continue_final_message: bool | None = Field(None, description="End with the last message, which stays open.")
    chat_template: Annotated[object, Only()] = None
    mm_processor_kwargs: Annotated[object, Only({})] = None

    def as_chat(self) -> chat.ChatCompletionRequest:
        """Return the chat whose prompt is tokenized."""
        names = self.model_fields.keys() & chat.ChatCompletionRequest.model_fields.keys()
        return chat.ChatCompletionRequest(**{name: getattr(self, name) for name in names})


class DetokenizeRequest(Strict):
    model: str | None = Field(None, description="The model's name in `GET /v1/models`.")
    tokens: Items[TokenId]
