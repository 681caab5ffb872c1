"""Answers of language models' stages, run in this process one after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omni_cli.requests.contents import Media
from omni_cli.requests.outputs import GenerateRequest
from support.media_samples import clip, image_of, tone
from support.stage_specs import derived_stages, load, run_requests

MAX_TOKENS = 12


def answer(**models: dict[str, Any]) -> dict[str, Any]:
    """Run each model's `requests` (`prompt`, and seeds of `image`, `audio` and `video` samples) from its `folder`.

    Return by name the media that the model `takes`, and for each request its token ids when it runs `alone` and when it
    runs with the others at `once`, or its error.
    """
    return {name: _answer(**model) for name, model in models.items()}


def _answer(folder: str, requests: Sequence[dict[str, Any]]) -> dict[str, Any]:
    stage = load(derived_stages(folder)[0], folder)
    stage.run_warm_up()
    made = [text_request(str(number), **request) for number, request in enumerate(requests)]
    alone = [_token_ids(stage, [request])[0] for request in made]
    once = _token_ids(stage, made)
    stage.close()
    return {"takes": sorted(stage.prompts.takes), "alone": alone, "once": once}


def _token_ids(stage: Any, requests: Sequence[GenerateRequest]) -> list[str | list[int]]:
    ends = run_requests(stage, requests)
    return [end if isinstance(end, str) else list(end[-1].text.token_ids) for end in ends]


def text_request(
    request_id: str, prompt: str, image: Sequence[int] = (), audio: Sequence[int] = (), video: Sequence[int] = ()
) -> GenerateRequest:
    """A greedy request; media are seeds of samples."""
    return GenerateRequest(
        request_id,
        prompt=prompt,
        media=Media(images=tuple(map(image_of, image)), audio=tuple(map(tone, audio)), videos=tuple(map(clip, video))),
        sampling={"temperature": 0.0, "max_tokens": MAX_TOKENS},
    )
