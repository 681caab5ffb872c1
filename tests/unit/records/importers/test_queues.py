"""Requests that were all sent at once wait in one queue: they are compared by their places in it, or as one."""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_cli.cli.app import run
from omni_cli.records.importers.building import request_variant
from omni_cli.records.importers.files import load_newest
from omni_cli.records.record import Sample, Variant
from omni_cli.stats.blocks import compare_queues, independent_units, queue_times, summarise
from omni_cli.stats.compare import compare_variants
from omni_cli.stats.estimate import get_centre

DATA = Path(__file__).parents[3] / "data" / "other_tools"
Draw = Callable[[np.random.Generator], float]


def waits(rng: np.random.Generator, count: int, places: int, draw: Draw) -> list[float]:
    """Return when requests end that are all sent at 0 to a server that answers `places` of them at a time."""
    free, ends = [0.0] * places, []
    for _ in range(count):
        ends.append(heapq.heappop(free) + draw(rng))
        heapq.heappush(free, ends[-1])
    return ends


def serving(path: Path, scale: float, seed: int, count: int = 200, *, sglang: bool = False, **changes: Any) -> Path:
    """Write a file of `vllm bench serve`, or of SGLang's, whose requests take about `scale` seconds each."""
    rng = np.random.default_rng(seed)
    ends = waits(rng, count, 16, lambda rng: scale * float(rng.lognormal(0, 0.1)))
    content: dict[str, Any] = {
        "model_id": "m", "tokenizer_id": "m", "backend": "b", "num_prompts": count, "request_rate": "inf",
        "max_concurrency": None, "completed": count, "failed": 0, "input_lens": [5] * count,
        "output_lens": [2] * count, "ttfts": [end - 0.5 * scale for end in ends], "itls": [[0.5 * scale]] * count,
        "errors": [""] * count,
    }  # fmt: skip
    if sglang:
        content = {**content, "random_input_len": 5, "server_info": None, "request_rate": float("inf")}
        content = {name: value for name, value in content.items() if name not in ("model_id", "tokenizer_id")}
    path.write_text(json.dumps({**content, **changes}))
    return path


GATE = ["--metric", "e2e_s", "--metric", "ttft_s", "--max-regression", "50%"]


@pytest.mark.parametrize("sglang", [False, True])
def test_twice_the_time_is_a_regression(sglang: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, same, twice, four = (
        str(serving(tmp_path / f"{seed}.json", scale, seed, sglang=sglang))
        for seed, scale in enumerate((1.0, 1.0, 2.0, 4.0))
    )
    assert run(["compare", old, same, *GATE]) == 0
    assert run(["compare", old, old, *GATE]) == 0
    capsys.readouterr()
    assert run(["compare", old, twice, *GATE]) == 1
    assert "measured one after the other" in capsys.readouterr().out, "not interleaved"
    assert run(["compare", old, four, *GATE]) == 1
    assert run(["compare", twice, old, *GATE]) == 0


def test_start_times_say_that_requests_were_sent_at_once(tmp_path: Path) -> None:
    at_once: Any = {"request_rate": 1000.0, "start_times": [7000 + number / 1000 for number in range(200)]}
    old, twice = (serving(tmp_path / f"{scale}.json", scale, 1, **at_once) for scale in (1.0, 2.0))
    assert run(["compare", str(old), str(twice), *GATE]) == 1
    slow_client: Any = {"start_times": [number / 10 for number in range(200)]}
    sent = serving(tmp_path / "slow.json", 1.0, 1, **slow_client)
    assert queue_times(load_newest(sent).record.variants[0], "ttft_s") is not None, "all at once is what was asked for"
    rising = serving(tmp_path / "rising.json", 1.0, 1, **slow_client, ramp_up_strategy="linear", ramp_up_end_rps=10)
    assert queue_times(load_newest(rising).record.variants[0], "ttft_s") is None
    variants = load_newest(DATA / "guidellm-1.json").record.variants
    assert [queue_times(variant, "e2e_s") is not None for variant in variants] == [False, True, False]
    limited = serving(tmp_path / "limited.json", 1.0, 1, max_concurrency=8)
    assert queue_times(load_newest(limited).record.variants[0], "e2e_s") is None
    plenty = serving(tmp_path / "plenty.json", 1.0, 1, max_concurrency=200)
    assert queue_times(load_newest(plenty).record.variants[0], "e2e_s") is not None


def test_other_queues_are_one_measurement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files of other lengths, and a queue beside requests that were sent one by one."""
    old = serving(tmp_path / "old.json", 1.0, 1)
    (variant,) = load_newest(old).record.variants
    assert all((summary := summarise(variant, name)) and summary.ci95 is None for name in ("e2e_s", "ttft_s"))
    assert (summary := summarise(variant, "tpot_s")) and summary.ci95 is not None, "no wait is in it"
    for name, changes in (("longer", {"count": 400}), ("paced", {"request_rate": 1.0})):
        path = serving(tmp_path / f"{name}.json", 2.0, 2, **changes)
        assert run(["compare", str(old), str(path), *GATE]) == 4
        allowed = ["--allow-difference", "workload", "--allow-difference", "work"]
        capsys.readouterr()
        assert run(["compare", str(old), str(path), *GATE, *allowed]) == 3
        shown = " ".join("".join(capsys.readouterr()).split())
        assert "all sent at once are one measurement" in shown and "more block" not in shown
        assert run(["compare", str(old), str(path), "--metric", "e2e_s", *allowed]) == 3
        assert "is undecided: +" in (out := capsys.readouterr().out) and "are one measurement" in out


@pytest.mark.parametrize("places", [1, 4, 16, 64])
def test_noise_is_no_regression(places: int) -> None:
    """Neighbours in a queue have their wait in common: of their times, block by block, a fifth to four tenths of the
    intervals would be wrong."""
    rng = np.random.default_rng(places)
    draws: list[Draw] = [lambda rng: float(rng.lognormal(0, 0.1)), lambda rng: float(rng.exponential())]
    wrong = []
    for number in range(150):
        a, b = (waits(rng, 120, places, draws[number % 2]) for _ in range(2))
        variants = [request_variant("a", [{"start_s": 0.0, "e2e_s": end} for end in ends]) for ends in (a, b)]
        ratios = compare_queues(*(queue_times(variant, "e2e_s") for variant in variants[:2]))
        assert ratios is not None and ratios.mean() == pytest.approx(np.log(sum(b) / sum(a)))
        units = independent_units(ratios)
        low, high = get_centre(units.values, units.inflation, trim=0.0).interval(0.05)
        wrong.append(low > 0 or high < 0)
    assert np.mean(wrong) <= 0.05 + 3 * (0.05 * 0.95 / 150) ** 0.5


def test_a_window_of_a_load_test_is_a_queue_and_several_are_blocks() -> None:
    def variant(name: str, scale: float, windows: int) -> Variant:
        ends = [tuple(waits(np.random.default_rng(seed), 40, 8, lambda rng: scale)) for seed in range(windows)]
        return Variant(
            name=name,
            samples=tuple(
                Sample(
                    block=number, position=0, number=number, e2e_s=float(np.median(times)),
                    requests={"start_s": (0.0,) * 40, "e2e_s": times},
                )
                for number, times in enumerate(ends)
            ),
        )  # fmt: skip

    (one,) = compare_variants(variant("a", 1.0, 1), variant("b", 2.0, 1), same_record=False)
    (several,) = compare_variants(variant("a", 1.0, 9), variant("b", 2.0, 9), same_record=False)
    assert (one.result.verdict, one.result.blocks) == ("slower", 10) and one.result.ratio == pytest.approx(2)
    assert (several.result.verdict, several.result.blocks) == ("slower", 9)
