"""`/v1/completions` by the official client, against transformers on the same weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from support.omni_server import OmniServer
from support.tiny_models import llama

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
USER = [{"role": "user", "content": "a house"}]
PROMPT = "the house of a friend"
OTHER = "water and"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama(tmp_path_factory.mktemp("checkpoint") / "tiny-llama")


@pytest.fixture(scope="module")
def server(start_server: Any, folder: Path) -> OmniServer:
    return start_server("--model", str(folder), "--set", "dtype=float32", "--max-requests", "8")


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def greedy(model: Any, token_ids: list[int], max_tokens: int) -> list[int]:
    tokens = torch.tensor([token_ids])
    made = model.generate(
        tokens, attention_mask=torch.ones_like(tokens), do_sample=False, max_new_tokens=max_tokens, pad_token_id=0
    )
    return made[0, len(token_ids) :].tolist()


def logprobs_of(model: Any, token_ids: list[int]) -> torch.Tensor:
    """Return those of all tokens after each one, (num_tokens, vocabulary)."""
    with torch.no_grad():
        return model(torch.tensor([token_ids])).logits[0].log_softmax(-1)


def check_tokens(found: list[str], token_ids: list[int], tokenizer: Any) -> None:
    """Bytes of a character that are tokens of their own have no text; vLLM and transformers show them in other ways."""
    expected = [tokenizer.decode([token_id]) for token_id in token_ids]
    assert len(found) == len(expected)
    assert all(token == text for token, text in zip(found, expected, strict=True) if "\ufffd" not in text)


def complete(server: OmniServer, prompt: Any, **fields: Any) -> Any:
    fields = {"temperature": 0, "max_tokens": 8, **fields}
    return server.client().completions.create(model="tiny-llama", prompt=prompt, **fields)


def test_a_text_as_transformers_continues_it(server: OmniServer, model: Any, tokenizer: Any) -> None:
    answer = complete(server, PROMPT, extra_body={"return_token_ids": True})
    prompt_ids = tokenizer(PROMPT).input_ids
    assert prompt_ids[0] == tokenizer.bos_token_id
    (choice,) = answer.choices
    assert choice.prompt_token_ids == prompt_ids
    assert choice.token_ids == greedy(model, prompt_ids, 8)
    assert choice.text == tokenizer.decode(choice.token_ids, skip_special_tokens=True) != ""
    assert choice.logprobs is None and choice.finish_reason == "length"
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(prompt_ids), 8)
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-")


def test_sixteen_tokens_by_default(server: OmniServer) -> None:
    for fields in ({}, {"max_tokens": None}):
        answer = server.request("POST", COMPLETIONS, {"prompt": PROMPT, "ignore_eos": True, **fields})
        assert answer.document["usage"]["completion_tokens"] == 16


def test_all_four_kinds_of_prompts(server: OmniServer, tokenizer: Any) -> None:
    texts = [PROMPT, OTHER]
    ids = tokenizer(texts).input_ids
    alone = [complete(server, text).choices[0].text for text in texts]
    assert [complete(server, each).choices[0].text for each in ids] == alone
    for prompts in (texts, ids):
        answer = complete(server, prompts)
        assert [choice.text for choice in answer.choices] == alone
        assert [choice.index for choice in answer.choices] == [0, 1]
        assert answer.usage.prompt_tokens == len(ids[0]) + len(ids[1])
        assert answer.usage.completion_tokens == 16


def test_special_tokens_can_be_left_out(server: OmniServer, tokenizer: Any) -> None:
    extra = {"return_token_ids": True, "add_special_tokens": False}
    (choice,) = complete(server, PROMPT, extra_body=extra).choices
    assert choice.prompt_token_ids == tokenizer(PROMPT, add_special_tokens=False).input_ids


def test_each_of_n_has_the_next_seed(server: OmniServer) -> None:
    sampling: dict[str, Any] = {"temperature": 1.5}
    answer = complete(server, [PROMPT, OTHER], n=3, seed=5, best_of=3, **sampling)
    alone = [
        complete(server, prompt, seed=5 + number, **sampling).choices[0].text
        for prompt in (PROMPT, OTHER)
        for number in range(3)
    ]
    assert [choice.text for choice in answer.choices] == alone
    assert len(set(alone)) == 6
    one = complete(server, [PROMPT, OTHER], **sampling)
    assert answer.usage.prompt_tokens == one.usage.prompt_tokens
    assert answer.seed == 5


def test_text_is_greedy_where_nobody_names_sampling_and_several_choices_are_drawn(
    server: OmniServer, model: Any, tokenizer: Any
) -> None:
    def ask(seed: int = 1, **fields: Any) -> list[Any]:
        asked = {"model": "tiny-llama", "prompt": PROMPT, "max_tokens": 8, "seed": seed, **fields}
        return server.client().completions.create(**asked, extra_body={"return_token_ids": True}).choices

    expected = greedy(model, tokenizer(PROMPT).input_ids, 8)
    assert [choice.token_ids for seed in (1, 2) for choice in ask(seed)] == [expected] * 2
    several, drawn = ask(n=3), ask(temperature=1)
    assert several[0].text == drawn[0].text == ask(top_p=1)[0].text
    assert len({choice.text for choice in several}) == 3
    (described,) = server.client().models.list().data
    assert described.sampling == {"temperature": {"value": 0.0, "source": "default"}}


def test_log_probabilities(server: OmniServer, model: Any, tokenizer: Any) -> None:
    extra = {"return_token_ids": True}
    (choice,) = complete(server, PROMPT, logprobs=3, extra_body=extra).choices
    expected = logprobs_of(model, choice.prompt_token_ids + choice.token_ids)[len(choice.prompt_token_ids) - 1 : -1]
    found = choice.logprobs
    check_tokens(found.tokens, choice.token_ids, tokenizer)
    assert found.token_logprobs == pytest.approx(
        [row[token_id].item() for row, token_id in zip(expected, choice.token_ids, strict=True)], abs=1e-3
    )
    for row, top in zip(expected, found.top_logprobs, strict=True):
        # Tokens of the same text share a key.
        likely = row.topk(3).values.tolist()
        assert all(any(value == pytest.approx(each, abs=1e-3) for each in likely) for value in top.values())
    assert found.text_offset == [len("".join(found.tokens[:number])) for number in range(8)]
    (choice,) = complete(server, PROMPT, logprobs=0).choices
    assert [list(top) for top in choice.logprobs.top_logprobs] == [[token] for token in choice.logprobs.tokens]


@pytest.mark.parametrize("max_tokens", [0, 1, 4])
def test_echo_scores_the_prompt(server: OmniServer, model: Any, tokenizer: Any, max_tokens: int) -> None:
    """As lm-eval asks for the likelihood of a text."""
    (choice,) = (answer := complete(server, PROMPT, echo=True, logprobs=1, max_tokens=max_tokens)).choices
    prompt_ids = tokenizer(PROMPT).input_ids
    token_ids = prompt_ids + greedy(model, prompt_ids, max_tokens) if max_tokens else prompt_ids
    assert choice.text == PROMPT + tokenizer.decode(token_ids[len(prompt_ids) :])
    expected = logprobs_of(model, token_ids)
    found = choice.logprobs
    check_tokens(found.tokens, token_ids, tokenizer)
    first, *others = found.token_logprobs
    assert first is None and found.top_logprobs[0] is None
    assert others == pytest.approx([expected[i, token_ids[i + 1]].item() for i in range(len(others))], abs=1e-3)
    for row, top in zip(expected, found.top_logprobs[1:], strict=False):
        assert max(top.values()) == pytest.approx(row.max().item(), abs=1e-3)
    assert answer.usage.completion_tokens == max_tokens
    assert choice.finish_reason == "length"
    again = complete(server, PROMPT, echo=True, logprobs=1, max_tokens=max_tokens).choices[0]
    assert again.logprobs.tokens == found.tokens  # not from the prefix cache


def test_echo_of_token_ids_is_their_text(server: OmniServer, tokenizer: Any) -> None:
    ids = tokenizer(PROMPT, add_special_tokens=False).input_ids
    plain = complete(server, ids).choices[0].text
    assert complete(server, ids, echo=True).choices[0].text == PROMPT + plain


def joined(chunks: list[Any]) -> Iterator[tuple[str, str | None, list[Any]]]:
    """Yield text, finish reason and log-probabilities of each choice."""
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    for index in sorted({choice.index for choice in choices}):
        own = [choice for choice in choices if choice.index == index]
        lists = [choice.logprobs for choice in own if choice.logprobs is not None]
        names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        logprobs = [[item for each in lists for item in getattr(each, name)] for name in names]
        (reason,) = [choice.finish_reason for choice in own if choice.finish_reason is not None]
        yield "".join(choice.text for choice in own), reason, logprobs


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"echo": True, "logprobs": 2},
        {"echo": True, "max_tokens": 0, "logprobs": 1},
        {"logprobs": 2, "n": 2, "temperature": 1.5, "seed": 3},
        {"stop": [" ", "e"], "max_tokens": 30, "logprobs": 0},
        {"extra_body": {"stop_token_ids": [300, 301, 302], "min_tokens": 2, "top_k": 4}, "presence_penalty": 1.0},
    ],
    ids=lambda fields: "-".join(fields) or "plain",
)
def test_streamed_is_the_same(server: OmniServer, fields: dict[str, Any]) -> None:
    whole = complete(server, [PROMPT, OTHER], **fields)
    chunks = list(complete(server, [PROMPT, OTHER], stream=True, stream_options={"include_usage": True}, **fields))
    for (text, reason, logprobs), choice in zip(joined(chunks), whole.choices, strict=True):
        assert (text, reason) == (choice.text, choice.finish_reason)
        if choice.logprobs is not None:
            found = choice.logprobs
            assert logprobs == [found.tokens, found.token_logprobs, found.top_logprobs, found.text_offset]
    assert chunks[-1].usage == whole.usage and chunks[-1].choices == []
    assert len({chunk.id for chunk in chunks}) == 1


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_a_stop_string_is_in_the_usage_alone(server: OmniServer, path: str) -> None:
    body: dict[str, Any] = {"temperature": 0, "max_tokens": 24, "return_token_ids": True, "ignore_eos": True}
    body |= {"prompt": PROMPT, "logprobs": 0} if path == COMPLETIONS else {"messages": USER, "logprobs": True}

    def ask(**fields: Any) -> tuple[str, list[str], list[int], int]:
        document = server.request("POST", path, body | fields).document
        (choice,) = document["choices"]
        text = choice["text"] if path == COMPLETIONS else choice["message"]["content"]
        found = choice["logprobs"]["tokens" if path == COMPLETIONS else "content"]
        tokens = [token if isinstance(token, str) else token["token"] for token in found]
        return text, tokens, choice["token_ids"], document["usage"]["completion_tokens"]

    whole, _, all_ids, _ = ask()
    for length in (1, 4):
        text, tokens, ids, num_made = ask(stop=[whole[20 : 20 + length]])
        assert text == whole[: whole.index(whole[20 : 20 + length])] == "".join(tokens)
        assert ids == all_ids[: len(tokens)] and len(ids) <= num_made <= len(all_ids)
        text, tokens, ids, num_made = ask(stop=[whole[20 : 20 + length]], include_stop_str_in_output=True)
        assert text == whole[: len(text)] == "".join(tokens) and ids == all_ids[:num_made]
    text, tokens, ids, num_made = ask(stop=[whole[:1]])
    assert (text, tokens, ids, num_made) == ("", [], [], 1)


def test_an_answer_that_is_begun(server: OmniServer, tokenizer: Any) -> None:
    begun = [*USER, {"role": "assistant", "content": "the house of"}]
    ids = tokenizer.apply_chat_template(
        begun, continue_final_message=True, add_generation_prompt=False, return_dict=False
    )
    given = {"messages": begun, "continue_final_message": True, "add_generation_prompt": False}
    assert server.request("POST", "/tokenize", given).document["tokens"] == list(ids)
    plain = complete(server, list(ids)).choices[0].text
    body = {**given, "temperature": 0, "max_tokens": 8}
    (choice,) = server.request("POST", CHAT, body).document["choices"]
    assert choice["message"]["content"] == plain
    (choice,) = server.request("POST", CHAT, body | {"echo": True}).document["choices"]
    assert choice["message"]["content"] == f"the house of{plain}"
    chunks = server.client().chat.completions.create(
        model="tiny-llama", messages=begun, stream=True, temperature=0, max_tokens=8,
        extra_body={"continue_final_message": True, "echo": True},
    )  # fmt: skip
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == f"the house of{plain}"
    both = server.request("POST", CHAT, given | {"add_generation_prompt": True})
    assert both.status == 400 and both.error["param"] == "continue_final_message"


def test_sampling_of_vllm(server: OmniServer, tokenizer: Any) -> None:
    plain = complete(server, PROMPT, extra_body={"return_token_ids": True}).choices[0]
    few = plain.token_ids[1:3]
    made = (
        complete(server, PROMPT, extra_body={"allowed_token_ids": few, "return_token_ids": True}).choices[0].token_ids
    )
    assert set(made) <= set(few)
    words = {token_id: tokenizer.decode([token_id]) for token_id in plain.token_ids}
    whole = (item for item in words.items() if tokenizer(item[1]).input_ids[1:] == [item[0]])
    bad = next(token_id for token_id, word in whole if word == word.strip())
    extra = {"bad_words": [words[bad]], "return_token_ids": True}
    assert bad not in complete(server, PROMPT, extra_body=extra).choices[0].token_ids
    end = {"logit_bias": {str(tokenizer.eos_token_id): 100}, "ignore_eos": True, "skip_special_tokens": False}
    assert complete(server, PROMPT, max_tokens=1, extra_body=end).choices[0].text == tokenizer.eos_token


def test_usage_in_every_chunk(server: OmniServer) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last = complete(server, PROMPT, stream=True, stream_options=options)
    counts = [chunk.usage.completion_tokens for chunk in chunks if chunk.choices[0].text]
    assert counts == sorted(counts) and counts[-1] == last.usage.completion_tokens


def test_bound_to_a_grammar(server: OmniServer) -> None:
    extra = {"structured_outputs": {"choice": ["yes", "no"]}}
    assert complete(server, PROMPT, max_tokens=20, extra_body=extra).choices[0].text in ("yes", "no")
    penalised = {"response_format": {"type": "json_object"}, "repetition_penalty": 0.01}
    assert complete(server, PROMPT, extra_body=penalised).choices[0].text.lstrip().startswith("{")


@pytest.mark.parametrize(
    ("fields", "message", "param"),
    [
        ({}, "`prompt` is missing", "prompt"),
        ({"prompt": 5}, "must be a text, a list of texts, token ids, or a list of lists", "prompt"),
        ({"prompt": ""}, "at least 1 character", "prompt"),
        ({"prompt": []}, "at least 1 item", "prompt"),
        ({"prompt": ["a", ""]}, "at least 1 character", "prompt[1]"),
        ({"prompt": [1, "a"]}, "valid integer", "prompt[1]"),
        ({"prompt": [[1], [-1]]}, "greater than or equal to 0", "prompt[1][0]"),
        ({"prompt": [10**6]}, "out of vocabulary", None),
        ({"prompt": [5] * 3000}, "2048", None),
        ({"prompt": "a", "suffix": "b"}, "`suffix` is not supported", "suffix"),
        ({"prompt": "a", "n": 2, "best_of": 3}, "`best_of`", "best_of"),
        ({"prompt": "a", "n": 9}, "`n` asks for 9 answers; the maximum is 8", "n"),
        ({"prompt": ["a"] * 5, "n": 2}, "`prompt` asks for 10 answers; the maximum is 8", "prompt"),
        ({"prompt": "a", "max_tokens": 0}, "needs `echo: true`", "max_tokens"),
        ({"prompt": "a", "max_tokens": 5000}, "`max_tokens` is 5000", None),
        ({"prompt": "a", "repetition_penalty": 5e-324}, "greater than or equal to 0.01", "repetition_penalty"),
        ({"prompt": "a", "logprobs": 6}, "less than or equal to 5", "logprobs"),
        ({"prompt": "a", "stream_options": {"include_usage": True}}, "needs `stream: true`", "stream_options"),
        ({"prompt": "a", "messages": []}, "unknown field `messages`", "messages"),
        ({"prompt": "a", "model": "other"}, "is not served here", "model"),
    ],
)
def test_refusals(server: OmniServer, fields: dict[str, Any], message: str, param: str | None) -> None:
    answer = server.request("POST", COMPLETIONS, fields)
    assert answer.status == (404 if "model" in fields else 400)
    assert message in answer.error["message"]
    assert answer.error["param"] == param


def test_one_wrong_prompt_fails_all(server: OmniServer) -> None:
    answer = server.request("POST", COMPLETIONS, {"prompt": [[5], [10**6]], "max_tokens": 500})
    assert answer.status == 400 and "out of vocabulary" in answer.error["message"]
    assert complete(server, OTHER).choices[0].text


def test_a_profile_without_text(image_server: OmniServer) -> None:
    answer = image_server.request("POST", COMPLETIONS, {"prompt": "a"})
    assert answer.status == 404 and answer.error["code"] == "unsupported_endpoint"


def test_an_omni_model_s_first_stage(omni: OmniServer, omni_engine: Any) -> None:
    from omni_cli.requests.contents import TextOptions
    from omni_cli.requests.outputs import GenerateRequest

    request = GenerateRequest(
        "r", "hello", text=TextOptions(raw=True), modalities=frozenset({"text"}), sampling={"max_tokens": 8}
    )
    expected = omni_engine.run(request).outputs[0]
    answer = omni.client().completions.create(model="tiny-omni", prompt="hello", max_tokens=8, seed=0)
    assert answer.choices[0].text == expected.text
