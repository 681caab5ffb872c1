"""Hidden states per request: exactly one row per position, in all situations, without changes to vLLM's results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.answers import answer_of
from support.samples import sample

WORDS = ("rain", "on", "a", "tin", "roof", "and", "the", "long", "road", "home", "under", "grey", "skies", "alone")


def prompt(length: int, first: str = "Once") -> str:
    return " ".join([first, *(WORDS[i % len(WORDS)] for i in range(length))])


def request(name: str, text: str, *, wants: bool = True, max_tokens: int = 12, **fields: Any) -> dict[str, Any]:
    return {"id": name, "prompt": text, "wants": wants, "max_tokens": max_tokens, **fields}


def run(
    model: Path,
    tmp_path: Path,
    rounds: list[list[dict[str, Any]]],
    stock: bool = False,
    late: bool = False,
    compile_cache: Path | None = None,
    **engine: Any,
) -> dict[str, Any]:
    """Return results by request id, preemptions, counters and leftovers of an engine in a separate process."""
    arguments = {"kv_cache_memory_bytes": 64 << 20, "max_model_len": 1024, "max_num_seqs": 8, **engine}
    task = {"model": str(model), "engine": arguments, "rounds": rounds, "stock": stock, "late": late}
    if compile_cache is not None:
        task["compile_cache"] = str(compile_cache)
    return answer_of("thinker_rows", task, tmp_path)


@pytest.fixture(scope="module")
def thinker(tiny_omni_path: Path) -> Any:
    from transformers import Qwen2_5OmniThinkerForConditionalGeneration

    model = Qwen2_5OmniThinkerForConditionalGeneration.from_pretrained(tiny_omni_path, dtype=torch.float32)
    return model.eval()


def assert_rows(result: dict[str, Any], thinker: Any) -> None:
    """One row per input position, with transformers' values."""
    consumed = result["prompt_token_ids"] + result["token_ids"][:-1]
    rows = np.array(result["rows"], dtype=np.float32)
    with torch.no_grad():
        expected = thinker.model(input_ids=torch.tensor([consumed])).last_hidden_state[0].numpy()
    assert rows.shape == expected.shape
    np.testing.assert_allclose(rows, expected, atol=2e-4, rtol=0)


def assert_penalised(result: dict[str, Any], penalty: float, thinker: Any) -> None:
    """Each token is the likeliest after transformers' penalty for those before it."""
    from transformers import RepetitionPenaltyLogitsProcessor

    penalise, start = RepetitionPenaltyLogitsProcessor(penalty), len(result["prompt_token_ids"])
    ids = torch.tensor([result["prompt_token_ids"] + result["token_ids"]])
    with torch.no_grad():
        logits = thinker(input_ids=ids).logits
    likeliest = [penalise(ids[:, :n], logits[:, n - 1]).argmax().item() for n in range(start, ids.shape[1])]
    assert result["token_ids"] == likeliest


@pytest.fixture(scope="module")
def plain(tiny_omni_path, tmp_path_factory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("plain")
    return run(tiny_omni_path, folder, [mixed_requests(logprobs=3)], compile_cache=folder / "compiled")


def mixed_requests(**fields: Any) -> list[dict[str, Any]]:
    return [
        request("short", "hello"),
        request("long", prompt(150), **fields),
        request("unwanted", prompt(40, "Now"), wants=False, **fields),
        request("middle", prompt(60, "Then"), max_tokens=30, repetition_penalty=1.3),
        request("one", "a", max_tokens=1),
    ]


def test_rows_of_a_mixed_batch(plain, thinker):
    for name in ("short", "long", "middle", "one"):
        assert_rows(plain["results"][name], thinker)
    assert plain["results"]["unwanted"]["rows"] is None
    assert plain["left"] == 0


def test_kernels_compiled_after_the_model_stay_where_the_next_process_looks(plain):
    before, while_compiling, after = plain["triton_cache"]
    assert after == before != while_compiling


def test_tokens_text_and_logprobs_are_those_of_stock_vllm(plain, tiny_omni_path, tmp_path):
    stock = run(tiny_omni_path, tmp_path, [mixed_requests(logprobs=3)], stock=True)
    for name, result in stock["results"].items():
        assert result["rows"] is None
        ours = plain["results"][name]
        assert (ours["token_ids"], ours["text"]) == (result["token_ids"], result["text"])
        assert ours["logprobs"] == result["logprobs"]


def test_rows_of_prompts_split_over_steps(tiny_omni_path, tmp_path, thinker, plain):
    result = run(tiny_omni_path, tmp_path, [mixed_requests()], max_num_batched_tokens=32, enable_chunked_prefill=True)
    for name in ("short", "long", "middle", "one"):
        assert_rows(result["results"][name], thinker)
        assert result["results"][name]["token_ids"] == plain["results"][name]["token_ids"]


def test_rows_of_a_prefix_served_from_the_cache(tiny_omni_path, tmp_path, thinker):
    rounds = [
        [request("first", prompt(150)), request("unwanted", prompt(150), wants=False)],
        [
            request("again", prompt(150)),
            request("longer", prompt(200)),
            request("unwanted-again", prompt(150), wants=False),
        ],
    ]
    results = run(tiny_omni_path, tmp_path, rounds, block_size=32, enable_prefix_caching=True)["results"]
    assert results["again"]["num_cached_tokens"] >= 32
    assert results["longer"]["num_cached_tokens"] >= 32
    assert results["unwanted-again"]["num_cached_tokens"] >= 32
    for name in ("first", "again", "longer"):
        assert_rows(results[name], thinker)


def test_rows_and_penalties_of_requests_preempted_and_recomputed(tiny_omni_path, tmp_path, thinker):
    requests = [
        request(f"r{i}", prompt(60 + 7 * i, f"Number {i}"), max_tokens=160, repetition_penalty=1 + i / 10)
        for i in range(4)
    ]
    bytes_a_block = 32 * 2 * 2 * 2 * 32 * 4  # tokens, keys and values, layers, key-value heads, head size, float32
    answer = run(
        tiny_omni_path, tmp_path, [requests], block_size=32, max_model_len=512, kv_cache_memory_bytes=22 * bytes_a_block
    )
    assert answer["preemptions"] > 0
    for asked in requests:
        result = answer["results"][asked["id"]]
        assert_rows(result, thinker)
        assert_penalised(result, asked["repetition_penalty"], thinker)


def test_one_late_copy_per_step_from_memory_that_the_next_step_overwrites(tiny_omni_path, tmp_path, thinker, plain):
    late = run(tiny_omni_path, tmp_path, [mixed_requests()], late=True)
    for name in ("short", "long", "middle", "one"):
        assert_rows(late["results"][name], thinker)
        assert late["results"][name]["token_ids"] == plain["results"][name]["token_ids"]
    counters = late["execution_counters"]
    # One of the requests that want rows is the last one to end.
    assert counters["copies"] == counters["pinned_copies"] == counters["eager_calls"] == 30
    rows = sum(len(late["results"][name]["rows"]) for name in ("short", "long", "middle", "one"))
    assert counters["copied_bytes"] == rows * len(late["results"]["one"]["rows"][0]) * 4
    assert counters["copy_s"] > 0 and counters["copy_hidden_s"] >= 0
    assert late["left"] == 0


def test_an_aborted_request_leaves_nothing_and_affects_no_other(tiny_omni_path, tmp_path, thinker, plain):
    requests = mixed_requests()
    requests[1]["abort_after"] = 1
    requests[0]["abort_after"] = 5
    answer = run(
        tiny_omni_path, tmp_path, [requests], late=True, max_num_batched_tokens=32, enable_chunked_prefill=True
    )
    assert set(answer["results"]) == {"unwanted", "middle", "one"}
    for name in ("middle", "one"):
        assert_rows(answer["results"][name], thinker)
        assert answer["results"][name]["token_ids"] == plain["results"][name]["token_ids"]
    assert answer["left"] == 0


@pytest.mark.parametrize(
    "ranks",
    sample([{"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}], [{"tensor_parallel_size": 2}]),
    ids=["tensor-parallel", "pipeline-parallel"],
)
def test_rows_and_tokens_under_parallel_ranks(tiny_omni_path, tmp_path, thinker, plain, ranks):
    result = run(tiny_omni_path, tmp_path, [mixed_requests()], distributed_executor_backend="mp", **ranks)
    for name in ("short", "long", "middle", "one"):
        assert_rows(result["results"][name], thinker)
    for name, expected in plain["results"].items():
        assert result["results"][name]["token_ids"] == expected["token_ids"]


NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3}


def test_rows_and_tokens_with_draft_tokens_accepted_and_rejected(tiny_omni_path, tmp_path, thinker, plain):
    """n-gram drafts: vLLM's proposer, scheduler, rejection and runner."""
    # Of the last step of one of these, an accepted draft token is one too many.
    cut = [request(f"cut {length}", prompt(150), max_tokens=length) for length in range(26, 32)]
    result = run(tiny_omni_path, tmp_path, [mixed_requests(), cut], late=True, speculative_config=NGRAM)
    drafts = result["drafts"]
    assert 0 < drafts["accepted"] < drafts["scheduled"], drafts
    for name in ("short", "long", "middle", "one", *(each["id"] for each in cut)):
        assert_rows(result["results"][name], thinker)
    for name, expected in plain["results"].items():
        assert result["results"][name]["token_ids"] == expected["token_ids"]
    assert result["left"] == 0
