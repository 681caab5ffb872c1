"""https://docs.pipecat.ai/server/services/llm/openai"""

from __future__ import annotations

from typing import Any

from checks import BASE_URL, KEY, MESSAGES, MODEL, WAV, WEATHER, check, fits, main
from pipecat.adapters.schemas.function_schema import FunctionSchema
from pipecat.frames.frames import (
    ErrorFrame,
    FunctionCallsStartedFrame,
    LLMContextFrame,
    LLMTextFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
)
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.services.llm_service import FunctionCallParams
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.services.openai.stt import OpenAISTTService
from pipecat.services.openai.tts import OpenAITTSService
from pipecat.tests.utils import run_test

SERVER: Any = {"base_url": BASE_URL, "api_key": KEY}
NAMED: Any = {"type": "function", "function": {"name": "get_weather"}}


def language_model(max_tokens: int = 16) -> OpenAILLMService:
    settings = OpenAILLMService.Settings(model=MODEL, max_completion_tokens=max_tokens)
    return OpenAILLMService(settings=settings, **SERVER)


async def frames(service: Any, frame: Any, kind: type) -> list[Any]:
    """Send a frame through a pipeline of the service; return the frames of this kind."""
    down, up = await run_test(service, frames_to_send=[frame], start_timeout=30)
    errors = [found.error for found in (*down, *up) if isinstance(found, ErrorFrame)]
    assert not errors, errors
    return [found for found in (*down, *up) if isinstance(found, kind)]


@check("chat")
async def _() -> str:
    return str(await language_model().run_inference(LLMContext(MESSAGES)))


@check("stream")
async def _() -> str:
    found = await frames(language_model(), LLMContextFrame(LLMContext(MESSAGES)), LLMTextFrame)
    assert found
    return "".join(frame.text for frame in found)


@check("json schema")
async def _() -> None:
    answer = await language_model().run_inference(LLMContext(MESSAGES), max_tokens=200, response_schema=WEATHER)
    assert fits(answer)


@check("tools named")
async def _() -> None:
    calls = []

    async def get_weather(call: FunctionCallParams) -> None:
        calls.append(call.arguments)
        await call.result_callback("rain")

    service = language_model(300)
    service.register_function("get_weather", get_weather)
    schema = FunctionSchema("get_weather", "The weather of a city.", WEATHER["properties"], WEATHER["required"])
    context = LLMContext(MESSAGES, tools=[schema], tool_choice=NAMED)
    assert await frames(service, LLMContextFrame(context), FunctionCallsStartedFrame)
    assert len(calls) == 1 and fits(calls[0])


@check("speech", "speech")
async def _() -> None:
    settings = OpenAITTSService.Settings(model=MODEL, voice="alloy")
    service = OpenAITTSService(settings=settings, **SERVER)
    assert await frames(service, TTSSpeakFrame("Good morning."), TTSAudioRawFrame)


@check("transcription", "transcription")
async def _() -> None:
    """Its pipeline would send what a detector of voices has cut out; this is such a piece."""
    service = OpenAISTTService(settings=OpenAISTTService.Settings(model=MODEL), **SERVER)
    (frame,) = [frame async for frame in service.run_stt(WAV)]
    assert isinstance(frame, TranscriptionFrame) and frame.text


if __name__ == "__main__":
    main()
