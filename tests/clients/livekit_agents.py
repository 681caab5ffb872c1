"""https://docs.livekit.io/agents/models/llm/openai-compatible-llms/"""

from __future__ import annotations

from typing import Any, Literal

from checks import BASE_URL, KEY, MODEL, QUESTION, WAV, check, fits, main
from livekit import rtc
from livekit.agents import APIConnectOptions, function_tool, llm
from livekit.plugins import openai

ONCE = APIConnectOptions(max_retry=0, timeout=60)
SERVER: Any = {"base_url": BASE_URL, "api_key": KEY}


@function_tool
async def get_weather(city: Literal["Rome", "Oslo"], days: Literal[1, 2]) -> str:
    """The weather of a city."""
    return "rain"


async def ask(**options: Any) -> Any:
    model = openai.LLM(model=MODEL, max_completion_tokens=300 if options else 16, **SERVER)
    context = llm.ChatContext.empty()
    context.add_message(role="user", content=QUESTION)
    return await model.chat(chat_ctx=context, conn_options=ONCE, **options).collect()


@check("stream")
async def _() -> str:
    answer = await ask()
    assert answer.text and answer.usage.total_tokens
    return str(answer.text)


@check("tools auto")
async def _() -> None:
    await ask(tools=[get_weather])


@check("tools named")
async def _() -> None:
    choice = {"type": "function", "function": {"name": "get_weather"}}
    (call,) = (await ask(tools=[get_weather], tool_choice=choice)).tool_calls
    assert fits(call.arguments)


async def speak(**options: Any) -> None:
    speech = openai.TTS(model=MODEL, voice="alloy", **options, **SERVER)
    frame = await speech.synthesize("Good morning.", conn_options=ONCE).collect()
    assert frame.sample_rate == 24_000 and frame.samples_per_channel


@check("speech", "speech")
async def _() -> None:
    await speak()


@check("speech formats", "speech")
async def _() -> None:
    for name in ("opus", "aac", "flac", "wav"):
        await speak(response_format=name)


@check("speech pcm", "speech")
async def _() -> None:
    await speak(response_format="pcm")


@check("transcription", "transcription")
async def _() -> None:
    frame = rtc.AudioFrame(WAV[44:], 16_000, 1, (len(WAV) - 44) // 2)
    event = await openai.STT(model=MODEL, **SERVER).recognize(frame, conn_options=ONCE)
    assert event.alternatives[0].text


if __name__ == "__main__":
    main()
