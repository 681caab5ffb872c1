"""https://github.com/openai/openai-python"""

from __future__ import annotations

import base64
import json
from typing import Any, Literal

from checks import BASE_URL, KEY, MESSAGES, MODEL, PNG_URL, QUESTION, TOOL, WAV, check, fits, main
from openai import OpenAI
from pydantic import BaseModel

client = OpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0)
chat = client.chat.completions
NAMED: Any = {"type": "function", "function": {"name": "get_weather"}}


class Weather(BaseModel):
    city: Literal["Rome", "Oslo"]
    days: Literal[1, 2]


def ask(**fields: Any) -> Any:
    return chat.create(**{"model": MODEL, "messages": MESSAGES, "max_tokens": 16, **fields})


@check("models", "text", "speech", "image", "transcription")
def _() -> None:
    assert MODEL in [model.id for model in client.models.list()]
    assert client.models.retrieve(MODEL).id == MODEL


@check("chat")
def _() -> str:
    answer = ask()
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens > 0
    assert answer.choices[0].message.content
    return str(answer.choices[0].message.content)


@check("stream")
def _() -> str:
    chunks = [chunk.choices[0] for chunk in ask(stream=True)]
    assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] in (["stop"], ["length"])
    assert len(chunks) > 2
    return "".join(chunk.delta.content or "" for chunk in chunks)


@check("stream helper")
def _() -> None:
    with chat.stream(model=MODEL, messages=MESSAGES, response_format=Weather, max_tokens=200) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        message = stream.get_final_completion().choices[0].message
    assert message.content == text and message.parsed


@check("usage")
def _() -> None:
    *_, last = ask(stream=True, stream_options={"include_usage": True})
    assert last.choices == [] and last.usage.completion_tokens > 0


@check("seed")
def _() -> None:
    texts = [ask(seed=seed, temperature=1.5).choices[0].message.content for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


@check("limits")
def _() -> None:
    answer = ask(max_completion_tokens=3, max_tokens=None)
    assert answer.choices[0].finish_reason == "length" and answer.usage.completion_tokens == 3


@check("history")
def _() -> None:
    reply = ask().choices[0].message
    developer = {"role": "developer", "content": "Be brief."}
    assert ask(messages=[developer, *MESSAGES, reply, {"role": "user", "content": "And of Italy?", "name": "Ada"}])


@check("harmless fields")
def _() -> None:
    ask(user="ada", store=False, metadata={"a": "b"}, service_tier="auto", parallel_tool_calls=True, tool_choice="auto")


@check("n")
def _() -> None:
    assert [choice.index for choice in ask(n=2, temperature=1.5).choices] == [0, 1]


@check("logprobs")
def _() -> None:
    tokens = ask(logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert all(len(token.top_logprobs) >= 2 and token.logprob <= 0 for token in tokens)


@check("json object", "text")
def _() -> None:
    json.loads(ask(response_format={"type": "json_object"}, max_tokens=300, seed=0).choices[0].message.content)


@check("json schema")
def _() -> str:
    answer = chat.parse(model=MODEL, messages=MESSAGES, response_format=Weather, max_tokens=200)
    assert answer.choices[0].message.parsed
    return str(answer.choices[0].message.parsed)


@check("tools auto")
def _() -> None:
    (choice,) = ask(tools=[TOOL], tool_choice="auto").choices
    assert choice.message.content or choice.message.tool_calls


@check("tools required")
def _() -> None:
    (choice,) = ask(tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_tokens=300).choices
    assert choice.finish_reason == "tool_calls"
    assert all(call.function.name == "get_weather" and fits(call.function.arguments) for call in _calls(choice))


@check("tools named")
def _() -> None:
    (call,) = _calls(ask(tools=[TOOL], tool_choice=NAMED, max_tokens=300).choices[0])
    assert call.function.name == "get_weather" and fits(call.function.arguments)


@check("tools streamed")
def _() -> None:
    with chat.stream(model=MODEL, messages=MESSAGES, tools=[TOOL], tool_choice=NAMED, max_tokens=300) as stream:
        (call,) = _calls(stream.get_final_completion().choices[0])
    assert call.function.name == "get_weather" and fits(call.function.arguments)


@check("tools result")
def _() -> None:
    (choice,) = ask(tools=[TOOL], tool_choice=NAMED, max_tokens=300).choices
    result = {"role": "tool", "tool_call_id": _calls(choice)[0].id, "content": "rain"}
    assert ask(messages=[*MESSAGES, choice.message, result], tools=[TOOL]).choices


def _calls(choice: Any) -> Any:
    assert choice.message.tool_calls
    return choice.message.tool_calls


@check("completions")
def _() -> None:
    answer = client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=8, echo=True)
    assert answer.choices[0].text.startswith("Once upon a time") and answer.usage.completion_tokens


@check("completions streamed")
def _() -> None:
    chunks = client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=8, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks)


@check("responses")
def _() -> str:
    answer = client.responses.create(model=MODEL, instructions="Be brief.", input=QUESTION, max_output_tokens=16)
    assert answer.output_text and answer.usage.output_tokens
    return str(answer.output_text)


@check("responses streamed")
def _() -> None:
    with client.responses.stream(model=MODEL, input=QUESTION, text_format=Weather, max_output_tokens=200) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        answer = stream.get_final_response()
    assert answer.output_text == text and answer.output_parsed


@check("responses json schema")
def _() -> None:
    answer = client.responses.parse(model=MODEL, input=QUESTION, text_format=Weather, max_output_tokens=200)
    assert answer.output_parsed


@check("responses tools")
def _() -> None:
    tool: Any = {"type": "function", **TOOL["function"], "strict": True}
    fields: Any = {"model": MODEL, "tools": [tool], "max_output_tokens": 300}
    answer = client.responses.create(input=QUESTION, tool_choice="required", parallel_tool_calls=False, **fields)
    calls = [item for item in answer.output if item.type == "function_call"]
    assert calls and all(call.name == "get_weather" and fits(call.arguments) for call in calls)
    results: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "rain"} for call in calls]
    asked: Any = [{"role": "user", "content": QUESTION}, *answer.output, *results]
    assert client.responses.create(**{**fields, "input": asked, "max_output_tokens": 16}).output


@check("image in", "speech")
def _() -> None:
    parts = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": PNG_URL}}]
    assert ask(messages=[{"role": "user", "content": parts}]).choices[0].message.content


@check("audio in", "speech")
def _() -> None:
    audio = {"data": base64.b64encode(WAV).decode(), "format": "wav"}
    assert ask(messages=[{"role": "user", "content": [{"type": "input_audio", "input_audio": audio}]}]).choices


@check("audio out", "speech")
def _() -> None:
    reply = ask(modalities=["text", "audio"], audio={"voice": "alloy", "format": "mp3"}).choices[0].message
    assert reply.audio.transcript and _is_mp3(base64.b64decode(reply.audio.data))
    earlier = {"role": "assistant", "audio": {"id": reply.audio.id}}
    assert ask(messages=[*MESSAGES, earlier, *MESSAGES]).choices[0].message.content


@check("audio out streamed", "speech")
def _() -> None:
    chunks = ask(modalities=["text", "audio"], audio={"voice": "alloy", "format": "pcm16"}, stream=True)
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.audio.data or "" for delta in deltas if getattr(delta, "audio", None))


@check("speech", "speech")
def _() -> None:
    assert _is_mp3(client.audio.speech.create(model=MODEL, voice="alloy", input="Good morning.").content)


@check("speech formats", "speech")
def _() -> None:
    starts = {"opus": b"OggS", "aac": b"\xff", "flac": b"fLaC", "wav": b"RIFF", "pcm": b""}
    for name, start in starts.items():
        request: Any = {"model": MODEL, "voice": "nova", "input": "Hi.", "response_format": name}
        assert client.audio.speech.create(**request).content.startswith(start), name


@check("speech streamed", "speech")
def _() -> None:
    request: Any = {"model": MODEL, "voice": "alloy", "input": "Good morning."}
    with client.audio.speech.with_streaming_response.create(**request) as response:
        assert _is_mp3(b"".join(response.iter_bytes()))


def transcribe(**fields: Any) -> Any:
    return client.audio.transcriptions.create(model=MODEL, file=("speech.wav", WAV), **fields)


@check("transcription", "transcription")
def _() -> None:
    assert transcribe().text


@check("transcription formats", "transcription")
def _() -> None:
    segments = transcribe(response_format="verbose_json", timestamp_granularities=["segment"]).segments
    assert segments and segments[0].text
    assert " --> " in transcribe(response_format="srt") and transcribe(response_format="vtt").startswith("WEBVTT")


@check("transcription streamed", "transcription")
def _() -> None:
    *deltas, done = transcribe(stream=True)
    assert done.text and "".join(event.delta for event in deltas) == done.text


@check("translation", "transcription")
def _() -> None:
    assert client.audio.translations.create(model=MODEL, file=("speech.wav", WAV)).text


def _is_mp3(data: bytes) -> bool:
    return data.startswith(b"ID3") or (data[0] == 0xFF and data[1] & 0xE0 == 0xE0)


@check("image", "image")
def _() -> None:
    made = client.images.generate(model=MODEL, prompt="a red cat", size="64x64", n=2, response_format="b64_json")
    assert [base64.b64decode(image.b64_json or "")[:4] for image in made.data or ()] == [b"\x89PNG"] * 2


@check("image formats", "image")
def _() -> None:
    made = client.images.generate(model=MODEL, prompt="a cat", output_format="webp", quality="high", moderation="low")
    assert base64.b64decode((made.data or [])[0].b64_json or "")[8:12] == b"WEBP"
    url = client.images.generate(model=MODEL, prompt="a cat", response_format="url")
    assert ((url.data or [])[0].url or "").startswith("data:image/")


@check("embeddings")
def _() -> None:
    assert client.embeddings.create(model=MODEL, input="hello").data


if __name__ == "__main__":
    main()
