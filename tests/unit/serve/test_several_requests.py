"""Several requests of one exchange: their events as they come, the first failure, and leaving early."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from omni_cli.config.bounds import MAX_SEED
from omni_cli.config.loader import load_profile
from omni_cli.core.errors import InputError
from omni_cli.requests.events import Event, TextDelta
from omni_cli.requests.outputs import GenerateRequest, RequestResult, StageInfo
from omni_cli.serve.errors import APIError
from omni_cli.serve.exchange import Exchange
from omni_cli.serve.limits import ServerSettings
from omni_cli.serve.metrics import Metrics
from omni_cli.serve.service import Service, seeded_copies


class Words:
    """Yields the words of a prompt; `wait` lasts for ever, and `fail` is a failure."""

    def __init__(self) -> None:
        self.running = 0

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        self.running += 1
        try:
            error = None
            for word in (request.prompt or "").split():
                await asyncio.sleep(0)
                if word == "wait":
                    await asyncio.Event().wait()
                elif word == "fail":
                    error = InputError("refused")
                else:
                    yield TextDelta(request.request_id, word)
            yield RequestResult(request.request_id, (), (), error)
        finally:
            self.running -= 1


def serving(words: Words) -> Service:
    unused: Any = None
    supervisor: Any = words
    return Service(load_profile("tiny-image"), supervisor, ServerSettings(), Metrics(64), unused)


def requests(*prompts: str) -> list[GenerateRequest]:
    return [GenerateRequest(str(number), prompt) for number, prompt in enumerate(prompts)]


async def run(words: Words, *prompts: str, stop_at: str | None = None) -> list[tuple[int, str | None]]:
    """Return the words in order, each with the index of its request, and None at each end."""
    exchange = Exchange("r", "POST", "/", None, 0.0, asyncio.get_running_loop().time() + 60)
    seen: list[tuple[int, str | None]] = []
    async with aclosing(serving(words).events_of_all(requests(*prompts), exchange)) as events:
        async for index, event in events:
            seen.append((index, event.text if isinstance(event, TextDelta) else None))
            if stop_at is not None and seen[-1][1] == stop_at:
                break
    return seen


def test_events_come_as_they_are_made() -> None:
    words = Words()
    seen = asyncio.run(run(words, "a b", "c d e"))
    assert [word for index, word in seen if index == 0] == ["a", "b", None]
    assert [word for index, word in seen if index == 1] == ["c", "d", "e", None]
    assert seen.index((1, "c")) < seen.index((0, "b"))
    assert words.running == 0


def test_one_failure_ends_all() -> None:
    words = Words()
    with pytest.raises(InputError, match="refused"):
        asyncio.run(run(words, "a wait", "b fail"))
    assert words.running == 0


def test_leaving_early_aborts_all() -> None:
    words = Words()
    assert (2, "b") in asyncio.run(run(words, "a wait", "wait", "c b wait", stop_at="b"))
    assert words.running == 0


def test_copies_have_the_following_seeds() -> None:
    copies = seeded_copies(GenerateRequest("r", "a", seed=MAX_SEED - 1), 3)
    assert [copy.seed for copy in copies] == [MAX_SEED - 1, MAX_SEED, 0]
    assert len({copy.request_id for copy in copies}) == 3


@pytest.mark.parametrize(
    ("source", "asked", "n", "temperature"),
    [("default", {}, 3, 1.0), ("default", {}, 1, None), ("default", {"top_p": 0.9}, 3, None), ("profile", {}, 3, None)],
)
def test_several_choices_are_drawn_where_one_is_greedy_by_default(
    source: str, asked: dict[str, float], n: int, temperature: float | None
) -> None:
    words: Any = Words()
    effective = {"default_sampling": {"temperature": {"value": 0.0, "source": source}}}
    words.stages = (StageInfo("model", "ar", 1.0, {}, effective),)
    copies = serving(words).choices(GenerateRequest("r", "a", sampling={"max_tokens": 8, **asked}), n)
    assert [copy.sampling.get("temperature") for copy in copies] == [temperature] * n


def test_no_more_than_the_server_runs_at_once() -> None:
    service = serving(Words())
    service.check_count(service.limits.max_requests, "n")
    with pytest.raises(APIError, match="`n` asks for 65 answers; the maximum is 64") as caught:
        service.check_count(65, "n")
    assert caught.value.param == "n"
