"""Counts of reasoning tokens by vLLM's parsers, with the first mark in the answer or already in the prompt."""

from __future__ import annotations

from typing import Any

import pytest
from support.tiny_models import tool_caller
from transformers import AutoTokenizer
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.parser.parser_manager import ParserManager

from omni_cli.backends.vllm.reply_parsing import ReplyParser
from omni_cli.requests.outputs import TextOutput

THOUGHT, ANSWER = "the house is old", "a house"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return AutoTokenizer.from_pretrained(tool_caller(tmp_path_factory.mktemp("model") / "tools"))


def parsed(tokenizer: Any, name: str, prompt: str, answer: str, step: int) -> TextOutput:
    """Give a parser an answer, `step` tokens at a time; the answer ends within its last token."""
    variables = {"thinking": True, "enable_thinking": True}
    kind: Any = ParserManager.get_parser(None, name, enable_auto_tools=True, tokenizer=tokenizer)
    asked = ChatCompletionRequest(messages=[{"role": "user", "content": "hm"}], chat_template_kwargs=variables)
    reply = ReplyParser(kind(tokenizer, None, chat_template_kwargs=variables), asked)
    prompt_ids, ids = (tokenizer(text, add_special_tokens=False).input_ids for text in (prompt, answer))
    pieces = []
    for begin in range(0, len(ids), step):
        new = range(begin, min(begin + step, len(ids)))
        texts = [tokenizer.decode(ids[: end + 1])[len(tokenizer.decode(ids[:end])) :] for end in new]
        more = reply.add(texts, ids[begin : begin + step], prompt_ids, finished=begin + step >= len(ids))
        pieces.append(more.text)
    return reply.complete(TextOutput("".join(pieces), tuple(ids), "stop"), ids)


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("where", ["answer", "prompt"])
@pytest.mark.parametrize("name", ["deepseek_r1", "deepseek_v3", "qwen3", "glm45", "step3"])
def test_what_precedes_the_last_mark_counts(tokenizer: Any, name: str, where: str, step: int) -> None:
    if name == "step3" and where == "answer":
        pytest.skip("it knows the last mark only")
    start = {"answer": ("", "<think>"), "prompt": ("<think>", "")}[where]
    found = parsed(tokenizer, name, f"hello{start[0]}", f"{start[1]}{THOUGHT}</think>{ANSWER}", step)
    assert (found.reasoning, found.text) == (THOUGHT, ANSWER)
    assert found.num_reasoning_tokens == len(tokenizer(THOUGHT, add_special_tokens=False).input_ids)
    open_ended = parsed(tokenizer, name, f"hello{start[0]}", f"{start[1]}{THOUGHT}", step)
    assert open_ended.num_reasoning_tokens == found.num_reasoning_tokens


def test_marks_of_words_alone(tokenizer: Any) -> None:
    """A parser that counts nothing itself: the tokens of what it calls reasoning."""
    answer = f"Here is my thought process: {THOUGHT} Here is my response: {ANSWER}"
    found = parsed(tokenizer, "granite", "hello", answer, 1)
    assert found.reasoning.strip().startswith(THOUGHT) and found.text.strip() == ANSWER
    assert found.num_reasoning_tokens == len(tokenizer(found.reasoning, add_special_tokens=False).input_ids)
