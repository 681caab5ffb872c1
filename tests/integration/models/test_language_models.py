"""Language models of vLLM, alone and with images, audio and video, against transformers' greedy `generate`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.answers import answer_of
from support.language_model_reference import Reference
from support.language_models import MAX_TOKENS
from support.tiny_models import BUILDERS

PROMPTS = (
    "hello",
    "the long road home",
    "rain on a tin roof",
    "a",
    "once upon a time",
    "seven",
    "under grey skies",
    "?",
)
MEDIA: Mapping[str, tuple[str, ...]] = {
    "idefics3": ("image",),
    "qwen2_audio": ("audio",),
    "qwen2_5_vl": ("image", "video"),
    "qwen3_vl": ("image", "video"),
}


def requests_of(name: str) -> list[dict[str, Any]]:
    """Eight, every other one with a medium, and one with two of them."""
    kinds = MEDIA.get(name, ())
    requests: list[dict[str, Any]] = [{"prompt": prompt} for prompt in PROMPTS]
    for number in range(0, len(requests) if kinds else 0, 2):
        kind = kinds[number // 2 % len(kinds)]
        requests[number][kind] = [number, number + 1] if number == 4 else [number]
    return requests


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {name: build(root / name) for name, build in BUILDERS.items()}


@pytest.fixture(scope="module")
def answers(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    task = {name: {"folder": str(folder), "requests": requests_of(name)} for name, folder in folders.items()}
    for name in task:
        missing = sorted({"image", "audio", "video"} - set(MEDIA.get(name, ())))
        task[name]["requests"] += [{"prompt": "hello", kind: [0]} for kind in missing]
    return answer_of("language_models", task, tmp_path_factory.mktemp("answers"))


@pytest.mark.parametrize("name", BUILDERS)
def test_tokens_are_those_of_transformers(name: str, folders: dict[str, Path], answers: Any) -> None:
    reference = Reference(folders[name])
    expected = [reference.tokens(max_tokens=MAX_TOKENS, **request) for request in requests_of(name)]
    assert len({tuple(tokens) for tokens in expected}) > len(PROMPTS) // 2, "answers that depend on the prompt"
    assert answers[name]["alone"][: len(PROMPTS)] == expected
    assert answers[name]["once"][: len(PROMPTS)] == expected


@pytest.mark.parametrize("name", BUILDERS)
def test_a_medium_that_a_model_lacks_is_one_error(name: str, answers: Any) -> None:
    kinds = MEDIA.get(name, ())
    assert answers[name]["takes"] == sorted(kinds)
    taken = {(): "text", ("image",): "text and images", ("audio",): "text and audio"}
    says = taken.get(kinds, "text and images and video")
    missing = sorted({"image", "audio", "video"} - set(kinds))
    expected = [f"InputError: stage `model` takes no {kind}: this model takes {says}" for kind in missing]
    assert answers[name]["alone"][len(PROMPTS) :] == answers[name]["once"][len(PROMPTS) :] == expected
