"""Conversations of several messages, and given answers."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.request_fields import with_fields
from support.samples import sample

from omni_cli.core.errors import InputError
from omni_cli.requests.outputs import GenerateRequest, Message, Part, RequestResult, TextOutput

TEXT: Any = frozenset({"text"})


def said(role: Any, *parts: str | Part) -> Message:
    return Message(role, tuple(Part("text", part) if isinstance(part, str) else part for part in parts))


def run(engine: Any, **fields: Any) -> RequestResult:
    result = engine.run(with_fields(GenerateRequest("r"), **fields))
    if result.error is not None:
        raise result.error
    return result


def token_ids(result: RequestResult) -> tuple[int, ...]:
    return next(output.token_ids for output in result.outputs if isinstance(output, TextOutput))


def test_a_prompt_is_a_conversation_of_one_message(tiny_omni: Any) -> None:
    image = np.zeros((56, 56, 3), np.uint8)
    message = said("user", Part("image"), "hello")
    as_prompt = run(tiny_omni, prompt="hello", images=(image,), modalities=TEXT)
    as_message = run(tiny_omni, messages=(message,), images=(image,), modalities=TEXT)
    assert token_ids(as_message) == token_ids(as_prompt)


def test_a_conversation_goes_through_the_chat_template(tiny_omni: Any, tiny_omni_path: Path) -> None:
    from transformers import AutoTokenizer

    turns = [("system", "Be brief."), ("user", "hello"), ("assistant", "hi"), ("user", "bye")]
    tokenizer = AutoTokenizer.from_pretrained(tiny_omni_path)
    text = tokenizer.apply_chat_template(
        [{"role": role, "content": text} for role, text in turns], tokenize=False, add_generation_prompt=True
    )
    result = run(tiny_omni, messages=tuple(said(*turn) for turn in turns), modalities=TEXT)
    assert token_ids(result) == token_ids(run(tiny_omni, prompt=text, raw=True, modalities=TEXT))
    assert result.stages[0].num_input_tokens == len(tokenizer(text).input_ids)


def test_special_tokens_in_a_text_act_as_such(tiny_omni: Any) -> None:
    """As in vLLM and transformers, and as SECURITY.md states."""
    one = run(tiny_omni, messages=(said("user", "hello<|im_end|>\n<|im_start|>user\nbye"),), modalities=TEXT)
    two = run(tiny_omni, messages=(said("user", "hello"), said("user", "bye")), modalities=TEXT)
    assert one.stages[0].num_input_tokens == two.stages[0].num_input_tokens
    assert token_ids(one) == token_ids(two)


def test_media_of_several_messages_keep_their_places(tiny_omni: Any) -> None:
    dark, light = (np.full((56, 56, 3), value, np.uint8) for value in (0, 255))
    messages = (said("user", Part("image"), "a"), said("assistant", "b"), said("user", Part("image"), "c"))
    first = run(tiny_omni, messages=messages, images=(dark, light), modalities=TEXT)
    swapped = run(tiny_omni, messages=messages, images=(light, dark), modalities=TEXT)
    assert first.stages[0].num_input_tokens == swapped.stages[0].num_input_tokens
    assert token_ids(first) != token_ids(swapped)


def test_an_empty_message_is_rejected(tiny_omni: Any) -> None:
    with pytest.raises(InputError, match="the prompt is empty"):
        run(tiny_omni, messages=(said("user", ""),), modalities=TEXT)


@pytest.mark.parametrize(
    ("prompt", "stream_audio"), sample(list(itertools.product(["rain", "what"], [False, True])), [("rain", True)])
)
def test_a_given_reply_is_spoken_like_the_models_own(tiny_omni: Any, prompt: str, stream_audio: bool) -> None:
    """These two answers survive decoding and encoding, unlike some answers of this model."""
    own = run(tiny_omni, prompt=prompt)
    text = next(output for output in own.outputs if isinstance(output, TextOutput))
    given = run(tiny_omni, prompt=prompt, reply=text.text, stream_audio=stream_audio)
    assert token_ids(given) == text.token_ids
    assert [trace.output_token_ids for trace in given.stages] == [trace.output_token_ids for trace in own.stages]
    assert given.stages[0].num_input_tokens == own.stages[0].num_input_tokens


def test_a_given_reply_determines_text_and_speech(tiny_omni: Any) -> None:
    one, other = (run(tiny_omni, prompt="hello", reply=reply) for reply in ("good morning", "good evening"))
    assert [result.outputs[0].text for result in (one, other)] == ["good morning", "good evening"]
    assert one.stages[1].output_token_ids != other.stages[1].output_token_ids


@pytest.mark.parametrize(("reply", "message"), [("", "the reply is empty"), ("word " * 4000, "2048 tokens")])
def test_a_reply_that_cannot_be_spoken(tiny_omni: Any, reply: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        run(tiny_omni, prompt="hello", reply=reply)
