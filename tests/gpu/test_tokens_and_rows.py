"""Tokens on a CUDA device are those of vLLM's runner, with penalties and n-gram drafts; rows with drafts."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from support.answers import answer_of

NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
# The model repeats itself, and so takes a draft, once in a hundred tokens.
PROMPTS = {
    "hello": 1.0,
    "rain": 1.2,
    "no no no no no no no no": 1.0,
    "rain on a tin roof and rain on a tin roof": 1.05,
}  # and their penalties
# Where a step has several rows, a device rounds in another way: of 20,000 values, two differed by 2.2e-3 on an H100.
ROWS_TOLERANCE = 5e-3


def _why_not() -> str | None:
    if find_spec("vllm") is None:
        return "needs vLLM, which is not installed"
    from vllm.platforms import current_platform

    return None if current_platform.is_cuda() else "needs vLLM for CUDA, and the installed one is for another device"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: Any) -> dict[str, dict[str, Any]]:
    reason = _why_not()
    if reason is not None:
        pytest.skip(reason)
    pytest.importorskip("numba", exc_type=ImportError)  # finds the drafts, and does not take every NumPy
    from omni_cli.checkpoints.tiny_qwen import tiny_omni

    folder = tmp_path_factory.mktemp("drafts")
    tiny_omni(folder / "model", 0)
    sizes = {"max_model_len": 512, "max_num_seqs": 4}
    plain = {**sizes, "kv_cache_memory_bytes": 256 << 20}
    drafts = {**plain, "speculative_config": NGRAM}
    return {
        "plain": _run(folder / "plain", plain),
        # vLLM refuses to load if more memory is free afterwards; smaller stacks free more than this model takes.
        "share": _run(folder / "share", {**sizes, "gpu_memory_utilization": 0.05}),
        "plain, vLLM's": _run(folder / "plain-stock", plain, stock=True),
        "drafts": _run(folder / "drafts", drafts),
        "drafts, vLLM's": _run(folder / "drafts-stock", drafts, stock=True),
    }


def _run(folder: Path, engine: dict[str, Any], *, stock: bool = False) -> dict[str, Any]:
    requests = [
        {"id": str(number), "prompt": prompt, "wants": True, "max_tokens": 200, "repetition_penalty": penalty}
        for number, (prompt, penalty) in enumerate(PROMPTS.items())
    ]
    model = str(folder.parent / "model")
    task = {"model": model, "engine": engine, "rounds": [requests], "stock": stock, "late": False}
    folder.mkdir()
    return answer_of("thinker_rows", task, folder, timeout_s=540, VLLM_ENABLE_V1_MULTIPROCESSING="0")


@pytest.mark.parametrize("kind", ["plain", "drafts"])
def test_tokens_are_those_of_vllms_runner(runs: dict[str, dict[str, Any]], kind: str) -> None:
    for name, expected in runs[f"{kind}, vLLM's"]["results"].items():
        assert runs[kind]["results"][name]["token_ids"] == expected["token_ids"], name


def test_a_kv_cache_of_a_share_of_the_device_gives_the_same_tokens(runs: dict[str, dict[str, Any]]) -> None:
    for name, expected in runs["plain"]["results"].items():
        assert runs["share"]["results"][name]["token_ids"] == expected["token_ids"], name


def test_rows_are_those_without_drafts(runs: dict[str, dict[str, Any]]) -> None:
    """As long as the tokens are: a step of several rows rounds in another way, which may decide between two tokens."""
    import torch

    drafts = runs["drafts"]["drafts"]
    assert 0 < drafts["accepted"] < drafts["scheduled"], drafts
    for name, expected in runs["plain"]["results"].items():
        result = runs["drafts"]["results"][name]
        pairs = zip(result["token_ids"], expected["token_ids"], strict=True)
        num_equal = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        assert num_equal > 20, name
        num_rows = min(len(expected["prompt_token_ids"]) + num_equal, len(expected["rows"]))
        rows, wanted = torch.tensor(result["rows"]), torch.tensor(expected["rows"])
        assert rows.shape == wanted.shape
        torch.testing.assert_close(rows[:num_rows], wanted[:num_rows], atol=ROWS_TOLERANCE, rtol=0)
