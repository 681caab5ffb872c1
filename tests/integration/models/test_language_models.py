"""Language models of vLLM, alone and with images, audio and video, against transformers' greedy `generate`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.answers import answer_of
from support.language_models import MAX_TOKENS
from support.references import LanguageReference
from support.samples import sample
from support.tiny_models import BUILDERS, OFTEN

PROMPTS = (
    "hello",
    "the long road home",
    "rain on a tin roof",
    "a",
    "once upon a time",
    "seven",
    "grey skies",
    "?",
)
MEDIA: Mapping[str, tuple[str, ...]] = {
    "idefics3": ("image",),
    "qwen2_audio": ("audio",),
    "qwen2_5_vl": ("image", "video"),
    "qwen3_vl": ("image", "video"),
}
NAMES = sample(tuple(BUILDERS), OFTEN)


def requests_of(name: str) -> list[dict[str, Any]]:
    """Eight requests, every other one with a medium, and one with two."""
    kinds = MEDIA.get(name, ())
    requests: list[dict[str, Any]] = [{"prompt": prompt} for prompt in PROMPTS]
    for number in range(0, len(requests) if kinds else 0, 2):
        kind = kinds[number // 2 % len(kinds)]
        requests[number][kind] = [number, number + 1] if number == 4 else [number]
    return requests


def missing(name: str) -> list[str]:
    """Return the media that a model does not take."""
    return sorted({"image", "audio", "video"} - set(MEDIA.get(name, ())))


class Stages:
    """Return the answers of the stages that always run, or of all others, from one process each."""

    def __init__(self, new_folder: Callable[[str], Path]) -> None:
        self._new_folder = new_folder
        self.folder = functools.cache(self._folder)
        self._answers = functools.cache(self._answers_of)

    def answers(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self._answers(tuple(other for other in BUILDERS if (other in OFTEN) == (name in OFTEN)))
        return found[name]

    def _folder(self, name: str) -> Path:
        return BUILDERS[name](self._new_folder("model") / name)

    def _answers_of(self, names: tuple[str, ...]) -> dict[str, Any]:
        refused = {name: [{"prompt": "hello", kind: [0]} for kind in missing(name)] for name in names}
        task = {
            name: {"folder": str(self.folder(name)), "requests": [*requests_of(name), *refused[name]]} for name in names
        }
        return answer_of("language_models", task, self._new_folder("answers"))


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Stages:
    return Stages(tmp_path_factory.mktemp)


@pytest.mark.parametrize("name", NAMES)
def test_tokens_are_those_of_transformers(name: str, stages: Stages) -> None:
    reference = LanguageReference(stages.folder(name))
    expected = [reference.tokens(max_tokens=MAX_TOKENS, **request) for request in requests_of(name)]
    assert len({tuple(tokens) for tokens in expected}) > len(PROMPTS) // 2, "answers that depend on the prompt"
    answers = stages.answers(name)
    assert answers["alone"][: len(PROMPTS)] == expected
    assert answers["once"][: len(PROMPTS)] == expected


@pytest.mark.parametrize("name", NAMES)
def test_a_medium_that_a_model_lacks_is_one_error(name: str, stages: Stages) -> None:
    answers, kinds = stages.answers(name), MEDIA.get(name, ())
    assert answers["takes"] == sorted(kinds)
    taken = {(): "text", ("image",): "text and images", ("audio",): "text and audio"}
    says = taken.get(kinds, "text, images and video")
    expected = [f"InputError: stage `model` takes no {kind}: this model takes {says}" for kind in missing(name)]
    assert answers["alone"][len(PROMPTS) :] == answers["once"][len(PROMPTS) :] == expected
