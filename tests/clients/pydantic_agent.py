"""https://ai.pydantic.dev/models/openai/"""

from __future__ import annotations

from typing import Any, Literal

from checks import BASE_URL, KEY, MODEL, PNG, QUESTION, WAV, check, main
from pydantic import BaseModel
from pydantic_ai import Agent, BinaryContent, ModelSettings, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(base_url=BASE_URL, api_key=KEY)
model = OpenAIChatModel(MODEL, provider=provider)


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Rome", "Oslo"]
    days: Literal[1, 2]


def agent(output: Any = str, max_tokens: int = 16, model: Any = model, **options: Any) -> Agent[None, Any]:
    settings = ModelSettings(max_tokens=max_tokens, temperature=0, parallel_tool_calls=False)
    return Agent(model, output_type=output, model_settings=settings, retries=0, **options)


@check("chat")
def _() -> str:
    result = agent(instructions="Be brief.").run_sync(QUESTION)
    return str(result.output)


@check("history")
def _() -> None:
    first = agent().run_sync(QUESTION)
    assert agent().run_sync("And of Italy?", message_history=first.all_messages()).output


@check("stream")
async def _() -> None:
    async with agent().run_stream(QUESTION) as result:
        assert "".join([piece async for piece in result.stream_text(delta=True)])


@check("json schema")
def _() -> None:
    assert isinstance(agent(NativeOutput(Weather), 200).run_sync(QUESTION).output, Weather)


@check("structured output by tools")
def _() -> None:
    assert isinstance(agent(Weather, 300).run_sync(QUESTION).output, Weather)


@check("tools auto")
def _() -> None:
    asked = agent()

    @asked.tool_plain
    def get_weather(city: Literal["Rome", "Oslo"], days: Literal[1, 2]) -> str:
        """The weather of a city."""
        return "rain"

    assert asked.run_sync(QUESTION).output


@check("tools streamed")
async def _() -> None:
    async with agent(Weather, 300).run_stream(QUESTION) as result:
        assert isinstance(await result.get_output(), Weather)


@check("responses")
def _() -> None:
    assert agent(model=OpenAIResponsesModel(MODEL, provider=provider)).run_sync(QUESTION).output


@check("image in", "speech")
def _() -> None:
    assert agent().run_sync(["What is it?", BinaryContent(PNG, media_type="image/png")]).output


@check("audio in", "speech")
def _() -> None:
    assert agent().run_sync(["What is it?", BinaryContent(WAV, media_type="audio/wav")]).output


if __name__ == "__main__":
    main()
