"""A talker whose rows arrive late generates the same tokens, and delays no other request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.answers import answer_of

REQUESTS = [
    {"id": name, "num_prompt": num_prompt, "num_reply": num_reply, "max_tokens": max_tokens}
    for name, num_prompt, num_reply, max_tokens in [
        ("first", 20, 40, 60),
        ("long prompt", 90, 12, 40),
        ("one token", 15, 1, 40),
        ("two tokens", 15, 2, 40),
        ("talker ends first", 30, 60, 20),
        ("long reply", 10, 70, 90),
        ("even", 25, 50, 51),
        ("more", 33, 33, 70),
    ]
]
STAGE = {"max_model_len": 256, "max_num_seqs": 8, "block_size": 32, "sampling": {"temperature": 0.0}}


def run(model: Path, tmp_path: Path, ways: tuple[str, ...] | None = None, **stage: Any) -> dict[str, Any]:
    task = {"model": str(model), "stage": {**STAGE, **stage}, "requests": REQUESTS}
    if ways is not None:
        task["ways"] = ways
    return answer_of("talker_rows", task, tmp_path, timeout_s=280)


@pytest.fixture(scope="module")
def roomy(tiny_omni_path, tmp_path_factory) -> dict[str, Any]:
    return run(tiny_omni_path, tmp_path_factory.mktemp("roomy"), kv_cache_memory_bytes=64 << 20)


@pytest.fixture(scope="module")
def pressed(tiny_omni_path, tmp_path_factory) -> dict[str, Any]:
    """Memory for one and a half requests of full length, and the longest prompt in chunks."""
    return run(
        tiny_omni_path, tmp_path_factory.mktemp("pressed"), kv_cache_memory_bytes=400_000, max_num_batched_tokens=64
    )


def test_late_rows_change_no_token(roomy):
    whole = roomy["whole"]
    assert [len(whole["tokens"][request["id"]]) for request in REQUESTS] == [r["max_tokens"] for r in REQUESTS]
    assert len({tuple(tokens) for tokens in whole["tokens"].values()}) == len(REQUESTS), "answers that tell them apart"
    assert roomy["random"]["tokens"] == whole["tokens"]
    assert roomy["random"]["num_stalls"] > 10, "rows were late"
    assert roomy["random"]["preempted"] == []


def test_nor_do_they_under_pressure(roomy, pressed):
    """Requests that are preempted while they wait for a row are recomputed up to that row and no further."""
    for way in ("whole", "random", "first starved", "later one starved"):
        assert pressed[way]["tokens"] == roomy["whole"]["tokens"], way
        assert pressed[way]["preempted"], way
    assert "talker ends first" in pressed["later one starved"]["preempted"], "it lost its memory and waited without it"


@pytest.mark.parametrize(("way", "name"), [("first starved", "first"), ("later one starved", "talker ends first")])
def test_a_waiting_request_does_not_delay_others(roomy, way, name):
    starved = roomy[way]
    assert starved["order"][-1] == name and len(starved["order"]) == len(REQUESTS)
    assert starved["tokens"] == roomy["whole"]["tokens"]
    assert starved["preempted"] == [], "it keeps its memory"
    assert starved["num_stalls"] <= 2, "the others never waited"


@pytest.mark.parametrize("memory", ["roomy", "pressed"])
def test_an_abort_of_one_that_waits_ends_it_alone_and_leaves_nothing(request, memory):
    results = request.getfixturevalue(memory)
    others = {name: tokens for name, tokens in results["whole"]["tokens"].items() if name != "first"}
    assert results["aborted"]["tokens"] == others
    blocks = {name: result["left"].pop("blocks") for name, result in results.items()}
    assert len(set(blocks.values())) == 1, blocks
    for result in results.values():
        assert result["left"] == {"stage": [], "scheduler": [], "pending": 0, "worker": []}


@pytest.mark.nightly
def test_pipeline_ranks_have_two_steps_in_progress_and_none_stalls(roomy, tiny_omni_path, tmp_path):
    """An attempt that finds nothing to run during a step does not predict what that step makes possible."""
    ranks = run(
        tiny_omni_path,
        tmp_path,
        ("whole", "random"),
        kv_cache_memory_bytes=64 << 20,
        pipeline_parallel_size=2,
        distributed_executor_backend="mp",
    )
    for way in ("whole", "random"):
        assert ranks[way]["tokens"] == roomy["whole"]["tokens"], way
    assert ranks["whole"]["num_stalls"] == 0, "all rows are there"
    assert ranks["random"]["num_stalls"] > 10, "rows were late"
    shared = ranks["shared_memory"]
    assert shared and all(name.endswith(" (deleted)") for name in shared), "what is killed would leave it behind"
