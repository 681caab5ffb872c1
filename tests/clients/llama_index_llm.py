"""https://docs.llamaindex.ai/en/stable/api_reference/llms/openai_like/"""

from typing import Any, Literal

from checks import BASE_URL, KEY, MODEL, QUESTION, check, fits, main
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Rome", "Oslo"]
    days: Literal[1, 2]


def get_weather(city: Literal["Rome", "Oslo"], days: Literal[1, 2]) -> str:
    """The weather of a city."""
    return "rain"


def make(max_tokens: int = 16, is_chat_model: bool = True, **options: Any) -> OpenAILike:
    options = {"is_function_calling_model": is_chat_model, "context_window": 2048, "max_retries": 0, **options}
    return OpenAILike(
        model=MODEL, api_base=BASE_URL, api_key=KEY, max_tokens=max_tokens, is_chat_model=is_chat_model, **options
    )


@check("chat")
def _() -> str:
    return str(make().chat([ChatMessage("Be brief.", role="system"), ChatMessage(QUESTION)]).message.content)


@check("stream")
def _() -> None:
    assert "".join(chunk.delta or "" for chunk in make().stream_chat([ChatMessage(QUESTION)]))


@check("completions")
def _() -> None:
    assert make(is_chat_model=False).complete("Once upon a time").text


@check("completions streamed")
def _() -> None:
    assert "".join(chunk.delta or "" for chunk in make(is_chat_model=False).stream_complete("Once upon a time"))


@check("structured output by tools")
def _() -> None:
    structured = make(300).as_structured_llm(Weather)
    assert isinstance(structured.chat([ChatMessage(QUESTION)]).raw, Weather)


@check("json schema")
def _() -> None:
    structured = make(300, should_use_structured_outputs=True).as_structured_llm(Weather)
    assert isinstance(structured.chat([ChatMessage(QUESTION)]).raw, Weather)


@check("tools auto")
def _() -> None:
    answer = make().chat_with_tools([FunctionTool.from_defaults(get_weather)], QUESTION)
    assert answer.message.content or answer.message.blocks


@check("tools required")
def _() -> None:
    llm = make(300)
    answer = llm.chat_with_tools([FunctionTool.from_defaults(get_weather)], QUESTION, tool_required=True)
    assert all(fits(call.tool_kwargs) for call in llm.get_tool_calls_from_response(answer))


if __name__ == "__main__":
    main()
