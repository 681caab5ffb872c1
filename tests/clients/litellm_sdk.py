"""https://docs.litellm.ai"""

from __future__ import annotations

from typing import Any, Literal

import litellm
from checks import BASE_URL, KEY, MESSAGES, MODEL, QUESTION, TOOL, WAV, check, fits, main
from pydantic import BaseModel

SERVER: Any = {"api_base": BASE_URL, "api_key": KEY, "max_retries": 0}
NAMED = {"type": "function", "function": {"name": "get_weather"}}


class Weather(BaseModel):
    city: Literal["Rome", "Oslo"]
    days: Literal[1, 2]


def ask(provider: str = "openai", **fields: Any) -> Any:
    fields = {"messages": MESSAGES, "max_tokens": 16, **fields}
    return litellm.completion(model=f"{provider}/{MODEL}", **SERVER, **fields)


@check("chat")
def _() -> str:
    answer = ask()
    assert answer.usage.total_tokens
    return str(answer.choices[0].message.content)


@check("hosted_vllm")
def _() -> None:
    assert ask("hosted_vllm").choices[0].message.content


@check("stream")
def _() -> None:
    assert "".join(chunk.choices[0].delta.content or "" for chunk in ask(stream=True))


@check("usage")
def _() -> None:
    *_, last = ask(stream=True, stream_options={"include_usage": True})
    assert last.usage.completion_tokens


@check("n")
def _() -> None:
    assert len(ask(n=2, temperature=1.5).choices) == 2


@check("logprobs")
def _() -> None:
    assert ask(logprobs=True, top_logprobs=2).choices[0].logprobs.content


@check("json schema")
def _() -> None:
    answer = ask(response_format=Weather, max_tokens=200)
    assert Weather.model_validate_json(answer.choices[0].message.content)


@check("tools auto")
def _() -> None:
    message = ask(tools=[TOOL], tool_choice="auto").choices[0].message
    assert message.content or message.tool_calls


@check("tools required")
def _() -> None:
    answer = ask(tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_tokens=300)
    assert all(fits(call.function.arguments) for call in answer.choices[0].message.tool_calls)


@check("tools named")
def _() -> None:
    (call,) = ask(tools=[TOOL], tool_choice=NAMED, max_tokens=300).choices[0].message.tool_calls
    assert fits(call.function.arguments)


@check("tools streamed")
def _() -> None:
    chunks = list(ask(tools=[TOOL], tool_choice=NAMED, max_tokens=300, stream=True))
    (call,) = litellm.stream_chunk_builder(chunks, messages=MESSAGES).choices[0].message.tool_calls
    assert fits(call.function.arguments)


@check("tools result")
def _() -> None:
    reply = ask(tools=[TOOL], tool_choice=NAMED, max_tokens=300).choices[0].message
    result = {"role": "tool", "tool_call_id": reply.tool_calls[0].id, "content": "rain"}
    assert ask(messages=[*MESSAGES, reply, result], tools=[TOOL]).choices


@check("anthropic messages")
def _() -> None:
    answer: Any = litellm.anthropic.messages.create(
        model=f"hosted_vllm/{MODEL}", messages=MESSAGES, max_tokens=16, **SERVER
    )
    assert answer["content"][0]["text"]


@check("completions")
def _() -> None:
    answer = litellm.text_completion(model=f"text-completion-openai/{MODEL}", prompt="Once", max_tokens=8, **SERVER)
    assert answer.choices[0].text


@check("responses")
def _() -> None:
    answer = litellm.responses(model=f"openai/{MODEL}", input=QUESTION, max_output_tokens=16, **SERVER)
    assert answer.output[0].content[0].text


@check("speech", "speech")
def _() -> None:
    assert litellm.speech(model=f"openai/{MODEL}", voice="alloy", input="Good morning.", **SERVER).content


@check("transcription", "transcription")
def _() -> None:
    assert litellm.transcription(model=f"openai/{MODEL}", file=("speech.wav", WAV), **SERVER).text


@check("image", "image")
def _() -> None:
    made = litellm.image_generation(model=f"openai/{MODEL}", prompt="a red cat", size="64x64", **SERVER)
    assert made.data[0].b64_json


if __name__ == "__main__":
    main()
