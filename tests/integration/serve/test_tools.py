"""Calls of tools and reasoning, whole and streamed; the weights say nothing, so grammars make them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.omni_server import CHAT, Answer, OmniServer
from transformers import AutoTokenizer

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
CLOCK: dict[str, Any] = {
    "type": "function",
    "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}},
}
TOOLS = [WEATHER, CLOCK]
NAMED = {"type": "function", "function": {"name": "get_weather"}}
ROME = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome", "days": 2}}\n</tool_call>'
NOON = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
USER = [{"role": "user", "content": "what is the weather?"}]


@pytest.fixture(scope="module")
def reasoner(tool_folder: Path, start_server: Any) -> OmniServer:
    return start_server("--model", str(tool_folder), "--reasoning-parser", "qwen3")


def body(**fields: Any) -> dict[str, Any]:
    return {"messages": USER, "max_tokens": 300, "seed": 0, "temperature": 1, **fields}


def answer(server: OmniServer, **fields: Any) -> dict[str, Any]:
    got = server.request("POST", CHAT, body(**fields))
    assert got.status == 200, got.body
    found: dict[str, Any] = json.loads(got.body)
    return found


def streamed(server: OmniServer, **fields: Any) -> dict[str, Any]:
    """Return the message and the finish reason that the chunks add up to."""
    message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
    reason = None
    with server.client() as client:
        chunks = client.chat.completions.create(
            model=None,
            stream=True,
            **{name: value for name, value in body(**fields).items() if name in KNOWN},
            extra_body={name: value for name, value in body(**fields).items() if name not in KNOWN},
        )
        for chunk in chunks:
            (choice,) = chunk.choices
            reason = choice.finish_reason or reason
            delta = choice.delta.model_dump(exclude_none=True)
            if delta.get("content"):
                message["content"] = (message["content"] or "") + delta["content"]
            for name in {"reasoning", "reasoning_content"} & delta.keys():
                message[name] = message.get(name, "") + delta[name]
            for piece in delta.get("tool_calls", ()):
                calls = message.setdefault("tool_calls", [])
                if piece["index"] == len(calls):
                    calls.append({"id": piece["id"], "type": "function", "function": {"name": "", "arguments": ""}})
                call = calls[piece["index"]]["function"]
                call["name"] += piece["function"].get("name") or ""
                call["arguments"] += piece["function"].get("arguments") or ""
    return {"message": message, "finish_reason": reason}


KNOWN = {"messages", "max_tokens", "seed", "temperature", "tools", "tool_choice", "parallel_tool_calls", "logit_bias"}


def without_ids(choice: dict[str, Any]) -> dict[str, Any]:
    """Ids are random."""
    message = dict(choice["message"])
    if "tool_calls" in message:
        assert all(call["id"] for call in message["tool_calls"])
        message["tool_calls"] = [call["function"] for call in message["tool_calls"]]
    return {"message": {**message, "content": message["content"] or None}, "finish_reason": choice["finish_reason"]}


def functions(choice: dict[str, Any]) -> list[tuple[str, Any]]:
    calls = choice["message"]["tool_calls"]
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


@pytest.mark.parametrize(
    ("text", "content", "expected"),
    [
        (ROME, None, [("get_weather", {"city": "Rome", "days": 2})]),
        (f"{ROME}\n{NOON}", None, [("get_weather", {"city": "Rome", "days": 2}), ("get_time", {})]),
        (f"I look.\n{NOON}", "I look.", [("get_time", {})]),
    ],
    ids=["one", "two", "after words"],
)
def test_calls_are_taken_out_of_the_text(
    tools_server: OmniServer, text: str, content: str | None, expected: Any
) -> None:
    asked = {"tools": TOOLS, "structured_outputs": {"choice": [text]}}
    (choice,) = answer(tools_server, **asked)["choices"]
    assert functions(choice) == expected
    assert (choice["message"]["content"] or "").strip() == (content or "")
    assert choice["finish_reason"] == "tool_calls"
    assert without_ids(streamed(tools_server, **asked)) == without_ids(choice)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("which", ["tools_server", "omni"])
@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_a_required_call_fits_its_schema(request: pytest.FixtureRequest, which: str, choice: Any, seed: int) -> None:
    """In the format of the checkpoint, or as JSON where that is not known."""
    server = request.getfixturevalue(which)
    asked = {"tools": [WEATHER], "tool_choice": choice, "parallel_tool_calls": False, "seed": seed}
    (made,) = answer(server, **asked)["choices"]
    ((name, arguments),) = functions(made)
    assert name == "get_weather"
    assert set(arguments) == {"city", "days"} and arguments["city"] in ("Rome", "Oslo") and 1 <= arguments["days"] <= 9
    assert made["finish_reason"] == ("tool_calls" if choice == "required" else "stop")
    assert without_ids(streamed(server, **asked)) == without_ids(made)


def test_tools_are_not_called_if_none_is_chosen(tools_server: OmniServer) -> None:
    (choice,) = answer(tools_server, tools=TOOLS, tool_choice="none", structured_outputs={"choice": [ROME]})["choices"]
    assert "tool_calls" not in choice["message"] and choice["finish_reason"] == "stop"


def test_results_of_calls_are_in_the_prompt_as_the_template_writes_them(
    tools_server: OmniServer, tool_folder: Path
) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
    messages = [
        *USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    ]
    as_template = [*messages]
    as_template[1] = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{**call, "function": {"name": "get_weather", "arguments": {"city": "Rome"}}}],
    }
    tokenizer = AutoTokenizer.from_pretrained(tool_folder)
    tools = [{"type": "function", "function": dict(tool["function"])} for tool in TOOLS]
    expected = tokenizer.apply_chat_template(as_template, tools=tools, add_generation_prompt=True, return_dict=False)
    got = answer(tools_server, messages=messages, tools=TOOLS, max_tokens=1)
    assert got["usage"]["prompt_tokens"] == len(expected)


def test_reasoning_is_beside_the_answer(reasoner: OmniServer, tool_folder: Path) -> None:
    """A grammar binds what comes after it."""
    end = AutoTokenizer.from_pretrained(tool_folder).convert_tokens_to_ids("</think>")
    lengths = set()
    for seed in range(4):
        asked = {"logit_bias": {str(end): 4}, "structured_outputs": {"choice": ["yes", "no"]}, "seed": seed}
        got = answer(reasoner, **asked)
        (choice,) = got["choices"]
        assert choice["message"]["content"].strip() in ("yes", "no")
        reasoning = choice["message"].get("reasoning_content", "")
        assert "think>" not in reasoning and choice["message"].get("reasoning", "") == reasoning
        assert bool(reasoning) == bool(got["usage"]["completion_tokens_details"]["reasoning_tokens"])
        lengths.add(len(reasoning))
        assert without_ids(streamed(reasoner, **asked)) == without_ids(choice)
    assert max(lengths) > 0


def test_a_stop_string_within_the_reasoning(reasoner: OmniServer) -> None:
    asked = {"temperature": 0, "max_tokens": 30, "ignore_eos": True}
    whole = answer(reasoner, **asked)["choices"][0]["message"]["reasoning"]
    stop = whole[11:15]
    got = answer(reasoner, **asked, stop=[stop], logprobs=True, return_token_ids=True)
    (choice,) = got["choices"]
    assert choice["message"]["reasoning"] == whole[: whole.index(stop)]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "stop")
    assert "".join(token["token"] for token in choice["logprobs"]["content"]) == whole[: whole.index(stop)]
    assert len(choice["token_ids"]) == len(choice["logprobs"]["content"]) <= got["usage"]["completion_tokens"]
    assert without_ids(streamed(reasoner, **asked, stop=[stop])) == without_ids(choice)


BOUND = [{"choice": ["yes", "no"]}, {"regex": "[0-9]{4}"}, {"json": {"type": "integer", "minimum": 0, "maximum": 99}}]


@pytest.mark.parametrize("bound", BOUND, ids=("choice", "regex", "json"))
def test_what_has_no_reasoning_is_bound_from_its_first_token(reasoner: OmniServer, bound: dict[str, Any]) -> None:
    """Completions, and chats whose prompt ends with an empty block of thoughts."""
    fields = {"structured_outputs": bound, "max_tokens": 20, "temperature": 1, "seed": 0}
    got = reasoner.request("POST", "/v1/completions", {"prompt": "the year", **fields}).document["choices"][0]
    assert is_bound(bound, got["text"]) and got["finish_reason"] == "stop"
    asked = {**fields, "chat_template_kwargs": {"enable_thinking": False}}
    whole = answer(reasoner, **asked)
    (choice,) = whole["choices"]
    assert is_bound(bound, choice["message"]["content"]) and "reasoning_content" not in choice["message"]
    assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0
    assert without_ids(streamed(reasoner, **asked)) == without_ids(choice)


def is_bound(bound: dict[str, Any], text: str) -> bool:
    expected = {"choice": "yes|no", "regex": "[0-9]{4}", "json": "[0-9]{1,2}"}
    return re.fullmatch(expected[next(iter(bound))], text) is not None


def test_an_answer_that_ends_within_its_reasoning_is_no_success(reasoner: OmniServer, tool_folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tool_folder)
    ends = {str(tokenizer.eos_token_id): 100, str(tokenizer.convert_tokens_to_ids("</think>")): -100}
    got = reasoner.request("POST", CHAT, body(logit_bias=ends, structured_outputs={"choice": ["yes"]}))
    assert got.status == 400 and "within its reasoning" in got.error["message"]
    (free,) = answer(reasoner, logit_bias=ends)["choices"]
    assert free["finish_reason"] == "stop" and not free["message"]["content"]


@pytest.mark.parametrize("which", ["tools_server", "omni"])
def test_schemas_of_functions_that_no_grammar_keeps(request: pytest.FixtureRequest, which: str) -> None:
    server: OmniServer = request.getfixturevalue(which)
    strict = {"tool_choice": "auto"} if which == "tools_server" else {"tool_choice": "required"}
    for keyword, schema in {
        "not": {"not": {}},
        "if": {"if": {}, "then": {}},
        "uniqueItems": {"uniqueItems": True},
    }.items():
        parameters = {"type": "object", "properties": {"a": schema}}
        tool = {"type": "function", "function": {"name": "f", "parameters": parameters, "strict": True}}
        for choice in (
            {"tool_choice": "required"},
            {"tool_choice": {"type": "function", "function": {"name": "f"}}},
            strict,
        ):
            error = server.request("POST", CHAT, body(tools=[tool], **choice)).error
            assert error["message"].startswith("`parameters` of function `f`") and f"`{keyword}`" in error["message"]
    loose = {"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}
    assert tools_are_free(request.getfixturevalue("tools_server"), loose)


def test_bounds_and_types_of_xgrammar_s_own(tools_server: OmniServer) -> None:
    def ask(schema: dict[str, Any]) -> Answer:
        parameters = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
        tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
        return tools_server.request("POST", CHAT, body(tools=[tool], tool_choice="required", max_tokens=8))

    assert ask({"type": "string", "minLength": 1, "maxLength": 500}).status == 200
    for schema, says in (
        ({"type": "integer", "maximum": (1 << 64) - 1}, "function `f`: Integer exceeds maximum limit"),
        ({"type": "string", "pattern": "^[a-z]{1,500}$"}, "`pattern`"),
        ({"type": "string", "pattern": "^10[.]", "format": "ipv4"}, "`pattern`"),
    ):
        got = ask(schema)
        assert got.status == 400 and says in got.error["message"]


def tools_are_free(server: OmniServer, tool: dict[str, Any]) -> bool:
    return bool(answer(server, tools=[tool], max_tokens=2)["choices"])


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"tool_choice": "required"}, "tool_choice", "there are no `tools`"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice", "`f`"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "'function'"),
        ({"tools": TOOLS}, None, "--tool-call-parser"),
        ({"tools": TOOLS, "modalities": ["text", "audio"]}, "tools", "would be spoken"),
    ],
    ids=["no tools", "no such tool", "other kind", "unknown format", "speech"],
)
def test_what_cannot_be_done_is_refused(omni: OmniServer, fields: dict[str, Any], param: str | None, says: str) -> None:
    got = omni.request("POST", CHAT, body(**fields))
    error = json.loads(got.body)["error"]
    assert got.status == 400 and error["param"] == param and says in error["message"]
