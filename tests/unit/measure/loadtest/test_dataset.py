"""Files of requests for load tests: conversations, our JSONL, traces, and what is wrong with others."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from omni_cli.core.errors import InputError
from omni_cli.measure.loadtest.dataset import Dataset, read_dataset


def written(folder: Path, content: Any) -> Path:
    """A file with a JSON list, or with a list of lines."""
    path = folder / "requests"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def lines(*objects: Any) -> str:
    return "".join(json.dumps(item) + "\n" for item in objects)


def read(path: Path, **options: Any) -> Dataset:
    defaults: dict[str, Any] = {"count_tokens": lambda text: len(text.split()), "output_len": None, "seed": 0}
    return read_dataset(path, **{**defaults, **options})


def talk(*turns: tuple[str, str]) -> dict[str, Any]:
    return {"id": "x", "conversations": [{"from": who, "value": text} for who, text in turns]}


def test_conversations_become_their_first_question_and_the_length_of_its_answer(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        [
            talk(("human", "one"), ("gpt", "a b c"), ("human", "more"), ("gpt", "d")),
            talk(("gpt", "an answer first"), ("human", "x")),
            talk(("human", "alone")),
            talk(("human", " "), ("gpt", "to nothing")),
            {"messages": [{"role": "user", "content": "two"}, {"role": "assistant", "content": "a b"}]},
        ],
    )
    found = read(path)
    assert {item.prompt: item.fields for item in found.requests} == {
        "one": {"max_completion_tokens": 3}, "two": {"max_completion_tokens": 2},
    }  # fmt: skip
    assert found.notes == ("3 of 5 conversations do not begin with a question and its answer, and are not sent",)
    assert {item.fields["max_completion_tokens"] for item in read(path, output_len=7).requests} == {7}
    assert all(item.fields == {} for item in read(path, endpoint="speech").requests)
    assert found.arrivals_s is None


def good(count: int) -> list[Any]:
    return [talk(("human", f"question {number}"), ("gpt", "a b")) for number in range(count)]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (talk(("human", "cut \ud83d"), ("gpt", "a")), "conversation 3 must be valid Unicode text"),
        (talk(("human", "a"), ("gpt", "\udc00")), "conversation 3 must be valid Unicode text"),
        ("text", "conversation 3 is not a JSON object"),
        ({"conversations": "text"}, "conversation 3 is not a list of turns"),
        ({"messages": ["user", "assistant"]}, "conversation 3 is not a list of turns"),
    ],
)
def test_a_broken_conversation_is_left_out_by_its_number(broken: Any, message: str, tmp_path: Path) -> None:
    found = read(written(tmp_path, [*good(2), broken, *good(3)]))
    assert len(found.requests) == 5
    assert found.notes == (f"1 of 6 conversations cannot be read, and are not sent; the first: {message}",)


def test_what_is_not_sent_need_not_be_text(tmp_path: Path) -> None:
    later = talk(("human", "one"), ("gpt", "a"), ("human", "cut \ud83d"))
    later["conversations"].append({"from": "gpt", "value": 5})
    assert read(written(tmp_path, [later])).notes == ()


def test_bytes_that_are_no_text_concern_their_conversation(tmp_path: Path) -> None:
    path = tmp_path / "requests"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(good(5)).encode().replace(b"question 3", b"question \xff"))
    found = read(path)
    assert len(found.requests) == 4 and "the first: conversation 4 must be valid Unicode" in found.notes[0]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
@pytest.mark.parametrize("content", [json.dumps(good(2)), lines({"prompt": "a"})])
def test_other_encodings_are_named(encoding: str, content: str, tmp_path: Path) -> None:
    path = tmp_path / "requests"
    path.write_bytes(content.encode(encoding))
    with pytest.raises(InputError, match=f"is {encoding[:6].upper()}(LE)?, not UTF-8") as caught:
        read(path)
    assert caught.value.hint is not None and "iconv -f UTF-" in caught.value.hint


def test_conversations_are_shuffled_by_the_seed(tmp_path: Path) -> None:
    path = written(tmp_path, [talk(("human", str(number)), ("gpt", "a")) for number in range(50)])
    orders = [[item.prompt for item in read(path, seed=seed).requests] for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0], key=int) == [str(number) for number in range(50)]


def test_lines_of_requests_with_media(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"png")
    (tmp_path / "b.wav").write_bytes(b"wav")
    path = written(
        tmp_path,
        lines(
            {"prompt": "one", "seed": 5, "sampling": {"max_tokens": 9, "temperature": 0.5}},
            {"prompt": "two", "image": "a.png", "audio": ["b.wav"], "request_id": "x"},
        ),
    )
    found = read(path)
    one, two = found.requests
    assert one.prompt == "one" and one.fields == {"seed": 5, "max_completion_tokens": 9, "temperature": 0.5}
    image, sound = two.parts
    assert image["image_url"] == {"url": f"data:image/png;base64,{base64.b64encode(b'png').decode()}"}
    assert sound["input_audio"] == {"data": base64.b64encode(b"wav").decode(), "format": "wav"}
    (tmp_path / "a.png").write_bytes(b"other")
    assert read(path).sha256 != found.sha256, "the media count"
    assert read(path, output_len=3).requests[0].fields["max_completion_tokens"] == 3


def test_traces(tmp_path: Path) -> None:
    mooncake = lines(
        {"timestamp": 3000, "input_length": 20, "output_length": 4, "hash_ids": [1]},
        {"timestamp": 1000, "input_length": 10, "output_length": 2, "hash_ids": [1]},
    )
    found = read(written(tmp_path, mooncake))
    assert [(item.input_len, item.fields["max_completion_tokens"], item.prompt) for item in found.requests] == [
        (10, 2, None), (20, 4, None),
    ]  # fmt: skip
    assert found.arrivals_s == (0.0, 2.0) and [item.hash_ids for item in found.requests] == [(1,), (1,)]
    assert found.notes == () and found.block_len == 512
    found = read(written(tmp_path, lines({"prompt": "b", "arrival_s": 2.5}, {"prompt": "a", "arrival_s": 2})))
    assert [item.prompt for item in found.requests] == ["a", "b"] and found.arrivals_s == (0.0, 0.5)


def batch_line(body: dict[str, Any], url: str = "/v1/chat/completions") -> str:
    return json.dumps({"custom_id": "a", "method": "POST", "url": url, "body": body})


def test_lines_of_other_tools(tmp_path: Path) -> None:
    """AIPerf's prompts, messages and sessions, and GuideLLM's lengths and system prompts."""
    chat = [{"role": "user", "content": "hi"}]
    aiperf = lines(
        {"text_input": "one", "output_length": 4, "session_id": "s"},
        {"messages": chat, "tools": [], "extra": {"top_k": 3}, "session_id": "s", "delay": 20},
    )
    found = read(written(tmp_path, aiperf))
    assert [item.prompt for item in found.requests] == ["one", ""] and found.arrivals_s is None
    assert [dict(item.fields) for item in found.requests] == [
        {"max_completion_tokens": 4}, {"messages": chat, "tools": [], "top_k": 3},
    ]  # fmt: skip
    (note,) = found.notes
    assert note.startswith("not used: `session_id`, `delay`; each line is a request of its own")
    guidellm = lines(
        {"question": "one", "system": "be short", "prompt_tokens_count": 7, "output_tokens_count": 5},
        {"prompt": "two", "relative_timestamp": 0.5, "completion_tokens_count": 6},
    )
    path = written(tmp_path, guidellm.replace('"question"', '"relative_timestamp": 0, "question"'))
    one, two = read(path).requests
    messages = [{"role": "system", "content": "be short"}, {"role": "user", "content": "one"}]
    assert (one.prompt, one.input_len) == ("one", 7)
    assert one.fields == {"max_completion_tokens": 5, "messages": messages}
    assert (two.due_s, two.fields) == (0.5, {"max_completion_tokens": 6})


def test_turns_that_wait_for_an_answer_are_not_sent(tmp_path: Path) -> None:
    turns = [{"text": "b", "session_id": "s", "delay": 9}, {"text": "c", "timestamp": 500}]
    found = read(written(tmp_path, lines({"text": "a", "timestamp": 0}, *turns)))
    assert [item.prompt for item in found.requests] == ["a", "c"]
    assert found.notes[1] == "1 of 3 lines have no time but follow an answer (`delay`), and are not sent"


def times(*values: float, key: str = "timestamp") -> str:
    return lines(*({key: value, "text_input": "x"} for value in values))


@pytest.mark.parametrize(
    ("content", "unit"),
    [
        (times(*(at / 2 for at in range(20))), "seconds"),
        (times(*range(10)), "seconds"),
        (times(*range(0, 90, 3)), "seconds"),
        (times(0, 4, 13, 17, 30, 31), "seconds"),
        (times(*(30.25 * at for at in range(20))), "seconds"),
        (times(1_764_000_000.0, 1_764_000_001.5), "seconds"),
        (times(0, 500, 1000, key="arrival_s"), "milliseconds"),
        (times(0, 500.5, 1000, key="relative_timestamp"), "milliseconds"),
    ],
)
def test_times_in_the_other_unit(content: str, unit: str, tmp_path: Path) -> None:
    path = written(tmp_path, content)
    with pytest.raises(InputError, match=f"looks like {unit}") as caught:
        read(path)
    assert caught.value.hint is not None and f"`--time-unit {unit}`" in caught.value.hint
    found = {name: read(path, time_unit=name).arrivals_s or () for name in ("seconds", "milliseconds")}
    assert found["seconds"][-1] == pytest.approx(1000 * found["milliseconds"][-1])


@pytest.mark.parametrize(
    "content",
    [
        times(3000, 1000), times(*range(0, 2000, 100)), times(*(105.5e3 * at for at in range(5))),
        times(*(0.25 * at for at in range(9)), key="arrival_s"), times(0.0, 105.0, 274.0),
    ],
)  # fmt: skip
def test_times_in_their_own_unit(content: str, tmp_path: Path) -> None:
    assert read(written(tmp_path, content)).arrivals_s


@pytest.mark.parametrize(("length", "hashes", "size"), [(1200, 3, 512), (100, 7, 16), (100, 2, 64), (5, 5, 1)])
def test_sizes_of_blocks(length: int, hashes: int, size: int, tmp_path: Path) -> None:
    found = read(written(tmp_path, lines({"input_length": length, "hash_ids": list(range(hashes))})))
    assert found.block_len == size
    assert found.notes == (
        ()
        if size == 512
        else (f"the blocks of `hash_ids` are taken to be of {size} tokens, by the lengths of the prompts",)
    )


def test_batch_files(tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 7, "model": "m", "temperature": 1}
    path = written(tmp_path, batch_line(chat))
    found = read(path)
    (request,) = found.requests
    unset = {"max_completion_tokens": None, "ignore_eos": None}
    assert request.fields == unset | {key: value for key, value in chat.items() if key != "model"}
    assert "not used: `model`; each line is a request of its own to the measured model" in found.notes[0]
    (request,) = read(path, output_len=3).requests
    assert (request.fields["max_completion_tokens"], request.fields["max_tokens"]) == (3, None)
    path = written(tmp_path, batch_line({"prompt": "a cat"}, "/v1/images/generations"))
    assert read(path, endpoint="images").requests[0].fields == {"prompt": "a cat"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("\n", "has no requests"),
        ("[", "is not a list of conversations: conversation 1: Expecting value"),
        ("[1]", "is not a list of conversations: conversation 1 is not a JSON object"),
        (json.dumps(good(5))[:-40], "is not a list of conversations: conversation 5: Unterminated string"),
        (json.dumps(good(5), indent=1).replace("n 3", "n \0"), "conversation 4: Invalid control character at: line 46"),
        ("[" * 5000, "conversation 1: nested too deeply"),
        ("[]", "has no conversation that begins"),
        ('[{"conversations": []}]', "has no conversation that begins"),
        ('{"prompt": "a"}\nx', "requests:2: the line is not JSON"),
        ('{"prompt": "a"}\n{"prompt": "cut \\ud83d"}', "requests:2: `prompt` must be valid Unicode text"),
        ('{"prompt": "a"}\n{"prompt": "a", "prompt": "b"}', "requests:2: the line is not valid JSON: duplicate key"),
        ('{"prompt": "a"}\n{"prompt": "b', "requests:2: the line is not JSON"),
        ('{"prompt": "a"}\n{"prompt": "b\0"}', "requests:2: the line is not JSON"),
        ('{"prompt": "a"}\n{}', "requests:2: the key `prompt` is missing"),
        ('{"promt": "a"}', "unknown key `promt`"),
        ('{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {}}', "has no `POST /v1/completions`"),
        (batch_line(body={}), "requests:1: the key `messages` of `body` is missing"),
        (batch_line(body={"messages": "hi"}), "requests:1: `messages` must be a list of JSON objects"),
        ('{"messages": ["hi"]}', "requests:1: `messages` must be a list of JSON objects"),
        ('{"custom_id": "a", "body": {}}', "requests:1: the key `method` is missing"),
        ('{"prompt": "a", "text_input": "b"}', "requests:1: `prompt` and `text_input` exclude each other"),
        ('{"messages": "a"}', "`messages` must be a list"),
        ('{"messages": [], "system": "a"}', "`messages` and `system` exclude each other"),
        ('{"system": "a", "input_length": 5}', "the key `prompt` is missing"),
        ('{"input_length": 5, "hash_ids": [1, 2, 3, 4, 5, 6]}', "`hash_ids` has 6 blocks for a prompt of 5 tokens"),
        ('{"input_length": 5, "hash_ids": ["a"]}', "`hash_ids` must be a list of whole numbers"),
        ('{"prompt": 1}', "`prompt` must be text"),
        ('{"prompt": "a", "modalities": ["text"]}', "unknown key `modalities`"),
        ('{"prompt": "a", "sampling": {"top_p": 0.5}}', "`sampling.top_p` is not sent"),
        ('{"prompt": "a", "image": "missing.png"}', "cannot open the image file"),
        ('{"prompt": "a", "image": "a.tiff"}', "is not one of .png"),
        ('{"prompt": "a", "arrival_s": -1}', "`arrival_s` must be a time"),
        ('{"prompt": "a", "arrival_s": 1}\n{"prompt": "a"}', "1 of 2 requests have an arrival time"),
        ('{"prompt": "a", "arrival_s": 1}', "all requests arrive at the same time"),
        ('{"timestamp": 0, "input_length": 5, "output_length": 0}', "`output_length` must be a number of tokens"),
        ('{"timestamp": 0, "output_length": 5}', "requests:1: the key `prompt` is missing"),
        (lines(*({"timestamp": at, "input_length": 5} for at in (0, 1e18))), "requests:2: `timestamp` must be a time"),
        ('{"timestamp": 0, "input_length": 5}\n{"timestamp": NaN, "input_length": 5}', "requests:2: the line is not"),
        (lines({"text": "a", "timestamp": 3}, {"text": "b"}), "requests:2: it has no arrival time: 1 of 2"),
        ('{"timestamp": true, "input_length": 5, "output_length": 1}', "`timestamp` must be a time"),
    ],
)
def test_invalid_files(content: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r".") as caught:
        read(written(tmp_path, content))
    assert message in caught.value.message


def test_keys_of_chats_only(tmp_path: Path) -> None:
    path = written(tmp_path, '{"prompt": "a", "sampling": {"max_tokens": 4}}')
    with pytest.raises(InputError, match="unknown key `sampling`"):
        read(path, endpoint="speech")
