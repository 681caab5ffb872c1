"""`/v1/responses` gives what a chat gives, and its events tell of the same response."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from support.omni_server import OmniServer

CHAT_TOOL = {"name": "get_time", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}
TOOL: Any = {"type": "function", **CHAT_TOOL}
RANDOM = ("id", "created_at", "completed_at", "call_id", "item_id")
Fields = dict[str, Any]


def create(server: OmniServer, **fields: Any) -> Any:
    return server.client().responses.create(**fields)


def stable(value: Any) -> Any:
    """Return a document without what differs from one answer to the next."""
    if isinstance(value, dict):
        return {name: stable(each) for name, each in value.items() if name not in RANDOM}
    return [stable(each) for each in value] if isinstance(value, list) else value


@pytest.fixture(
    params=[
        {"input": "hello"},
        {"input": "hello", "instructions": "Be brief.", "max_output_tokens": 3},
        {"input": "hello", "include": ["message.output_text.logprobs"], "top_logprobs": 2, "max_output_tokens": 4},
        {
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "what time is it?"}]}],
            "tools": [TOOL],
            "tool_choice": "required",
        },
    ],
    ids=["text", "cut", "logprobs", "call"],
)
def asked(request: pytest.FixtureRequest) -> Fields:
    fields: Fields = {**request.param, "extra_body": {"seed": 1}}
    return fields


def test_its_events_add_up_to_the_whole(tools_server: OmniServer, asked: Fields) -> None:
    asked.setdefault("max_output_tokens", 60)
    whole = create(tools_server, **asked)
    events = list(create(tools_server, **asked, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type == f"response.{whole.status}"
    assert stable(events[-1].response.model_dump(mode="json")) == stable(whole.model_dump(mode="json"))
    last = events[-1].response
    for index, item in enumerate(last.output):
        own = [event for event in events if getattr(event, "output_index", None) == index]
        assert (own[0].type, own[-1].type) == ("response.output_item.added", "response.output_item.done")
        assert own[-1].item == item
        text = "".join(event.delta for event in own if event.type.endswith(".delta"))
        assert text == (item.arguments if item.type == "function_call" else item.content[0].text)


def test_it_is_the_chat_s_answer(omni: OmniServer) -> None:
    chat = omni.client().chat.completions.create(
        model="tiny-omni",
        messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}],
        seed=3,
        temperature=1,
    )
    answer = create(omni, instructions="Be brief.", input="hello", temperature=1, extra_body={"seed": 3})
    assert answer.output_text == chat.choices[0].message.content != ""
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (
        chat.usage.prompt_tokens,
        chat.usage.completion_tokens,
    )
    assert answer.status == ("incomplete" if chat.choices[0].finish_reason == "length" else "completed")


def test_a_conversation_with_calls_is_the_chat_s(tools_server: OmniServer) -> None:
    """Of an earlier answer, the reasoning, the words and the calls are items here and one message there."""
    items: Any = [
        {"role": "user", "content": "what time is it?"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
        },
        {"type": "function_call", "call_id": "call_1", "name": "get_time", "arguments": "{}"},
        {"type": "function_call", "call_id": "call_2", "name": "get_time", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "noon"},
        {"type": "function_call_output", "call_id": "call_2", "output": "noon"},
        {"role": "user", "content": "thanks"},
    ]
    function = {"name": "get_time", "arguments": "{}"}
    calls = [{"id": f"call_{number}", "type": "function", "function": function} for number in (1, 2)]
    messages: Any = [
        {"role": "user", "content": "what time is it?"},
        {"role": "assistant", "content": "I look.", "reasoning_content": "hm", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
        {"role": "tool", "tool_call_id": "call_2", "content": "noon"},
        {"role": "user", "content": "thanks"},
    ]
    client = tools_server.client()
    chat = client.chat.completions.create(
        model="tool_caller",
        messages=messages,
        seed=0,
        max_tokens=8,
        tools=[{"type": "function", "function": CHAT_TOOL}],
    )
    answer = create(tools_server, input=items, tools=[TOOL], max_output_tokens=8, extra_body={"seed": 0})
    assert answer.usage.input_tokens == chat.usage.prompt_tokens
    assert answer.output_text == chat.choices[0].message.content


def test_a_schema_binds_the_text(omni: OmniServer) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    text: Any = {"format": {"type": "json_schema", "name": "thing", "strict": True, "schema": schema}}
    assert json.loads(create(omni, input="hello", text=text, max_output_tokens=100).output_text)["ok"] in (True, False)


def test_an_error_of_the_engine_names_the_field_of_a_response(omni: OmniServer) -> None:
    wrong = {"max_output_tokens": 8_000_000}, {"reasoning": {"effort": "high"}}
    said = [omni.request("POST", "/v1/responses", {"input": "hello", **body}).error["message"] for body in wrong]
    assert "`max_output_tokens` is 8000000" in said[0] and "takes no `reasoning.effort`" in said[1]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"truncation": "auto"}, "truncation"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://x"}]}]}, "input"),
        ({"instruction": "x"}, "instruction"),
        ({"top_logprobs": 2}, "top_logprobs"),
    ],
)
def test_what_has_no_effect_is_refused_by_name(omni: OmniServer, fields: Fields, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        create(omni, input=fields.get("input", "hello"), extra_body=fields)
    assert refused.value.param == param
