"""https://docs.langchain.com/oss/python/integrations/chat/openai"""

from __future__ import annotations

import base64
from typing import Any, Literal

from checks import BASE_URL, KEY, MODEL, PNG, QUESTION, WAV, check, fits, main
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel

SERVER: Any = {"base_url": BASE_URL, "api_key": KEY, "model": MODEL, "max_retries": 0}


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Rome", "Oslo"]
    days: Literal[1, 2]


@tool
def get_weather(city: Literal["Rome", "Oslo"], days: Literal[1, 2]) -> str:
    """The weather of a city."""
    return "rain"


def chat(max_tokens: int = 16, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(**SERVER, max_tokens=max_tokens, **options)


@check("chat")
def _() -> str:
    answer = chat().invoke([("system", "Be brief."), ("human", QUESTION)])
    assert answer.usage_metadata["total_tokens"]
    return answer.text


@check("stream")
def _() -> None:
    assert "".join(chunk.text for chunk in chat().stream(QUESTION))


@check("usage")
def _() -> None:
    whole: Any = None
    for chunk in chat(stream_usage=True).stream(QUESTION):
        whole = chunk if whole is None else whole + chunk
    assert whole.usage_metadata["output_tokens"]


@check("batch")
def _() -> None:
    assert len(chat().batch([QUESTION, "And of Italy?"])) == 2


@check("n")
def _() -> None:
    assert len(chat(n=2, temperature=1.5).generate([[HumanMessage(QUESTION)]]).generations[0]) == 2


@check("logprobs")
def _() -> None:
    assert chat(logprobs=True, top_logprobs=2).invoke(QUESTION).response_metadata["logprobs"]["content"]


@check("json schema")
def _() -> None:
    assert isinstance(chat(200).with_structured_output(Weather).invoke(QUESTION), Weather)


@check("structured output by tools")
def _() -> None:
    structured = chat(300).with_structured_output(Weather, method="function_calling")
    assert isinstance(structured.invoke(QUESTION), Weather)


@check("tools auto")
def _() -> None:
    answer = chat().bind_tools([get_weather]).invoke(QUESTION)
    assert answer.content or answer.tool_calls


@check("tools required")
def _() -> None:
    bound = chat(300).bind_tools([get_weather], tool_choice="required", parallel_tool_calls=False)
    assert all(fits(call["args"]) for call in bound.invoke(QUESTION).tool_calls)


@check("tools named")
def _() -> None:
    (call,) = chat(300).bind_tools([get_weather], tool_choice="get_weather").invoke(QUESTION).tool_calls
    assert fits(call["args"])


@check("tools streamed")
def _() -> None:
    whole: Any = None
    for chunk in chat(300).bind_tools([get_weather], tool_choice="get_weather").stream(QUESTION):
        whole = chunk if whole is None else whole + chunk
    (call,) = whole.tool_calls
    assert fits(call["args"])


@check("tools result")
def _() -> None:
    reply = chat(300).bind_tools([get_weather], tool_choice="get_weather").invoke(QUESTION)
    result = ToolMessage("rain", tool_call_id=reply.tool_calls[0]["id"])
    assert chat().bind_tools([get_weather]).invoke([HumanMessage(QUESTION), reply, result])


@check("completions")
def _() -> None:
    assert OpenAI(**SERVER, max_tokens=8).invoke("Once upon a time")


@check("responses")
def _() -> None:
    assert chat(use_responses_api=True).invoke(QUESTION).text


@check("image in", "speech")
def _() -> None:
    image = {"type": "image", "base64": base64.b64encode(PNG).decode(), "mime_type": "image/png"}
    assert chat().invoke([HumanMessage([{"type": "text", "text": "What is it?"}, image])]).text


@check("audio in", "speech")
def _() -> None:
    audio = {"type": "audio", "base64": base64.b64encode(WAV).decode(), "mime_type": "audio/wav"}
    assert chat().invoke([HumanMessage([{"type": "text", "text": "What is it?"}, audio])]).text


@check("audio out", "speech")
def _() -> None:
    spoken = chat(model_kwargs={"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}})
    assert base64.b64decode(spoken.invoke(QUESTION).additional_kwargs["audio"]["data"]).startswith(b"RIFF")


if __name__ == "__main__":
    main()
