"""Answers of a talker on vLLM in this process, with the thinker's rows at once or late."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil
import torch

from omni_cli.models.qwen2_5_omni.connectors import PartialOutput
from omni_cli.models.qwen2_5_omni.settings import TalkerConfig
from omni_cli.requests.contents import StageIO
from omni_cli.requests.outputs import GenerateRequest
from omni_cli.stage.messages import AppendInput, RequestDone
from omni_cli.stage.payloads import encode_additional_information
from support.stage_specs import load

NUM_TEXT_TOKENS = 256
MOST_STEPS = 20_000


def answer(
    model: str, stage: dict[str, Any], requests: list[dict[str, Any]], ways: Iterable[str] | None = None
) -> dict[str, Any]:
    """Feed the same requests (`id`, `num_prompt`, `num_reply`, `max_tokens`) in some or all `ways`.

    `stage` are fields of `TalkerConfig`. Return for each way the tokens and what happened; for several ranks
    `shared_memory`.
    """
    config = TalkerConfig.create("talker", input="thinker", **stage)
    loaded = load(config, model)
    runs = Runs(loaded, requests)
    all_ways: dict[str, Callable[[], dict[str, Any]]] = {
        "whole": lambda: runs.run(lambda feeds: None, whole=True),
        "random": lambda: runs.run(feeding_at_random()),
        "first starved": lambda: runs.run(starving("first")),
        "later one starved": lambda: runs.run(starving("talker ends first")),
        "aborted": lambda: runs.run(aborting_first()),
    }
    results: dict[str, Any] = {way: all_ways[way]() for way in ways or all_ways}
    if config.has_ranks_elsewhere:
        results["shared_memory"] = shared_memory()
    loaded.close()
    return results


def shared_memory() -> list[str]:
    """Python's shared memory in this process and its ranks; the name of an unlinked one ends in `(deleted)`."""
    this = psutil.Process()
    maps = [Path(f"/proc/{process.pid}/maps").read_text() for process in (this, *this.children(recursive=True))]
    lines = [line.partition("/dev/shm/") for text in maps for line in text.splitlines()]
    return sorted({name for _, _, name in lines if name.startswith("psm_")})


class Feed:
    """One request's rows: those that are still to come, in order."""

    def __init__(self, stage: Any, request: dict[str, Any], *, whole: bool) -> None:
        self.stage, self.id, self.is_done = stage, request["id"], False
        parts = [encode_additional_information(part) for part in stage_output_parts(stage, request, whole=whole)]
        self.parts = deque(parts[1:])
        stage.add(
            GenerateRequest(
                self.id,
                stage=StageIO(input=parts[0], more_follows=bool(self.parts)),
                sampling=dict.fromkeys(("min_tokens", "max_tokens"), request["max_tokens"]),
            )
        )

    def more(self) -> None:
        self.stage.append(AppendInput(self.id, self.parts.popleft(), is_last=not self.parts))

    def all(self) -> None:
        while self.parts:
            self.more()


Feeding = Callable[[dict[str, Feed]], None]


def stage_output_parts(stage: Any, request: dict[str, Any], *, whole: bool) -> list[dict[str, Any]]:
    """The stage output of a thinker that makes one token per step."""
    draw = torch.Generator().manual_seed(sum(request["id"].encode()))
    num_prompt, num_reply = request["num_prompt"], request["num_reply"]
    ids = torch.randint(0, NUM_TEXT_TOKENS, (num_prompt + num_reply,), generator=draw).tolist()
    hidden = torch.randn(num_prompt + num_reply - 1, stage.config.embedding_size, generator=draw)
    partial, parts = PartialOutput(), []
    partial.add_rows(hidden[:num_prompt])
    for num_tokens in range(1, num_reply + 1):
        if num_tokens > 1:
            partial.add_rows(hidden[num_prompt + num_tokens - 2 : num_prompt + num_tokens - 1])
        if whole and num_tokens < num_reply:
            continue
        reply = ids[num_prompt : num_prompt + num_tokens]
        parts.append(partial.take(ids[:num_prompt], reply, {}, is_last=num_tokens == num_reply))
    return [part for part in parts if part is not None]


class Runs:
    def __init__(self, stage: Any, requests: list[dict[str, Any]]) -> None:
        self.stage, self.requests = stage, requests
        self.preempted: list[str] = []
        preempt = stage.scheduler._preempt_request

        def noted(request: Any, *args: Any, **kwargs: Any) -> Any:
            self.preempted.append(request.request_id.rpartition("-")[0])
            return preempt(request, *args, **kwargs)

        stage.scheduler._preempt_request = noted

    def run(self, feed: Feeding, *, whole: bool = False) -> dict[str, Any]:
        """All requests at once. `feed(feeds)` is called between steps, and must give rows where nothing can run."""
        self.preempted, tokens, order, num_stalls = [], {}, [], 0
        feeds = {request["id"]: Feed(self.stage, request, whole=whole) for request in self.requests}
        for _ in range(MOST_STEPS):
            if not self.stage.engine.has_unfinished_requests():
                break
            if self.stage.has_work():
                for report in self.stage.step():
                    if isinstance(report, RequestDone):
                        tokens[report.request_id] = report.trace["output_token_ids"]
                        order.append(report.request_id)
                        feeds[report.request_id].is_done = True
            else:
                num_stalls += 1
            feed(feeds)
        for waiting in feeds.values():
            waiting.all()  # of requests that have ended: nothing may come of it
        scheduler = self.stage.scheduler
        # What has ended leaves the workers with the next request that runs.
        last, *_ = self.drain(feeds)
        return {
            "tokens": tokens,
            "order": order,
            "num_stalls": num_stalls,
            "preempted": self.preempted,
            "left": {
                "stage": list(self.stage.active),
                "scheduler": list(scheduler.requests),
                "pending": len(scheduler._pending),
                "worker": [name for name in last if not name.startswith("drain")],
                "blocks": scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
            },
        }

    def drain(self, feeds: Any) -> list[list[str]]:
        request = {"id": "drain", "num_prompt": 3, "num_reply": 1, "max_tokens": 2}
        Feed(self.stage, request, whole=True)
        while self.stage.has_work():
            self.stage.step()
        feeds.clear()
        return self.stage.engine.collective_rpc(lambda worker: list(worker.model_runner.request_payloads))


def feeding_at_random() -> Feeding:
    draw = random.Random(0)

    def feed(feeds: dict[str, Feed]) -> None:
        hungry = [feed for feed in feeds.values() if feed.parts]
        if hungry and draw.random() < 0.4:
            draw.choice(hungry).more()

    return feed


def starving(name: str) -> Feeding:
    """The request of that name gets nothing before all others have ended, which get theirs at once."""

    def feed(feeds: dict[str, Feed]) -> None:
        others = [feed for feed in feeds.values() if feed.id != name]
        for other in others:
            other.all()
        if all(other.is_done for other in others):
            feeds[name].all()

    return feed


def aborting_first() -> Feeding:
    """The first is aborted while it waits for rows."""
    turns = itertools.count()

    def feed(feeds: dict[str, Feed]) -> None:
        first, *others = feeds.values()
        for other in others:
            other.all()
        if next(turns) == 6:
            first.stage.abort(first.id)

    return feed
