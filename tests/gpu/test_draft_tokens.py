"""n-gram speculative decoding on a CUDA device: the tokens and the hidden-state rows of the same run without it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.answers import answer_of

NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
# The model repeats itself, and so takes a draft, once in a hundred tokens.
PROMPTS = ("hello", "rain", "no no no no no no no no", "rain on a tin roof and rain on a tin roof")
ROWS_TOLERANCE = 2e-3  # float32 on a device multiplies in another order where a step has several rows


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
    from omni_cli.models.qwen2_5_omni.checkpoint.builder import tiny_omni

    folder = tmp_path_factory.mktemp("drafts")
    tiny_omni(folder / "model", seed=0)
    plain = {"kv_cache_memory_bytes": 256 << 20, "max_model_len": 512, "max_num_seqs": 4}
    return {
        name: _run(folder, name, engine)
        for name, engine in {"plain": plain, "drafts": {**plain, "speculative_config": NGRAM}}.items()
    }


def _run(folder: Path, name: str, engine: dict[str, Any]) -> dict[str, Any]:
    requests = [
        {"id": str(number), "prompt": prompt, "wants": True, "max_tokens": 200} for number, prompt in enumerate(PROMPTS)
    ]
    task = {"model": str(folder / "model"), "engine": engine, "rounds": [requests], "stock": False, "late": False}
    (folder / name).mkdir()
    return answer_of("thinker_rows", task, folder / name, timeout_s=540, VLLM_ENABLE_V1_MULTIPROCESSING="0")


def test_tokens_and_rows_are_those_without_drafts(runs: dict[str, dict[str, Any]]) -> None:
    import torch

    drafts = runs["drafts"]["drafts"]
    assert 0 < drafts["accepted"] < drafts["scheduled"], drafts
    for name, expected in runs["plain"]["results"].items():
        result = runs["drafts"]["results"][name]
        assert result["token_ids"] == expected["token_ids"]
        rows, wanted = torch.tensor(result["rows"]), torch.tensor(expected["rows"])
        assert rows.shape == wanted.shape
        torch.testing.assert_close(rows, wanted, atol=ROWS_TOLERANCE, rtol=0)
