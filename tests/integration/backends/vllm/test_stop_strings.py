"""Text, token ids and log-probabilities around a stop string, with several tokens per step: n-gram drafts."""

from __future__ import annotations

import random
from pathlib import Path

import transformers
from support.answers import answer_of
from support.tiny_models import llama

PROMPT = "the long road home and the long road home and the long road"
SAMPLING = {"temperature": 0, "max_tokens": 40, "logprobs": 1, "ignore_eos": True}


def test_only_tokens_of_the_text_are_listed(tmp_path: Path) -> None:
    folder = llama(tmp_path / "llama")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    rng = random.Random(0)
    cuts = [
        (rng.uniform(0.02, 0.9), rng.sample((1, 2, 3, 7), rng.choice((1, 2))), rng.random() < 0.3) for _ in range(8)
    ]
    # Of few tokens, answers repeat themselves, and so drafts are accepted.
    words = tokenizer("the water of a friendly house, grüße 日", add_special_tokens=False).input_ids
    kinds = [SAMPLING | {"allowed_token_ids": words[number:]} for number in range(6)]
    task = {"folder": str(folder), "prompt": PROMPT, "sampling": kinds, "cuts": cuts}
    found = answer_of("stopped_text", task, tmp_path)
    straddled = 0
    for free, stops, includes, answer in found["answers"]:
        end, begin = min((free["text"].index(stop) + len(stop), free["text"].index(stop)) for stop in stops)
        text = free["text"][: end if includes else begin]
        assert (answer["text"], answer["reason"]) == (text, "stop")
        assert answer["made"] == free["made"][: len(answer["made"])]
        num = len(answer["token_ids"])
        assert answer["token_ids"] == answer["made"][:num]
        assert "".join(answer["tokens"][:num]) == text
        whole = tokenizer.decode(answer["token_ids"], skip_special_tokens=True)
        assert whole.startswith(text)
        straddled += whole != text
        sent = [piece for piece, _ in answer["chunks"]], [token for _, tokens in answer["chunks"] for token in tokens]
        assert ("".join(sent[0]), sent[1]) == (text, answer["tokens"][:num])
        for number in range(len(answer["chunks"])):
            pieces = answer["chunks"][: number + 1]
            assert "".join(piece for piece, _ in pieces) == "".join(token for _, tokens in pieces for token in tokens)
    assert straddled, "a stop string begins within a token"
    assert max(free["per_step"] for free, *_ in found["answers"]) > 1, "drafts were accepted"
    assert found["left"] == 0
