"""Counts of requests are those of all requests, whatever windows they were in."""

from __future__ import annotations

import numpy as np
import pytest
from support.bench_records import record

from omni_cli.record import Sample, Variant
from omni_cli.report.bench_notes import disturbance_warnings
from omni_cli.report.bench_server import server_lines
from omni_cli.stats.compare import compare_variants
from omni_cli.stats.disturbance import disturbances, is_slowed
from omni_cli.stats.summary import get_summaries


def windows(
    name: str, good: list[int], size: int, lasted_s: list[float], *, position: int = 0, block: int = 0
) -> Variant:
    """A window per entry of `good`, of `size` requests, all of which were answered."""
    samples = tuple(
        Sample(
            block=block + number,
            position=position,
            number=number,
            e2e_s=0.2,
            metrics={
                "requests_per_second": size / seconds,
                "goodput_per_second": count / seconds,
                "slo_attainment": count / size,
            },
            work={"requests": float(size)},
            requests={"e2e_s": (0.2,) * size, "output_tokens": (33.0,) * size},
        )
        for number, (count, seconds) in enumerate(zip(good, lasted_s, strict=True))
    )
    return Variant(name=name, samples=samples)


def test_a_few_bad_windows_are_in_the_share() -> None:
    """8 of 128 requests in one of sixteen windows: the median window is perfect, the truth 0.9375."""
    variant = windows("a", [8] * 15 + [0], 8, [1.0] * 15 + [4.0])
    found = get_summaries(variant)
    attainment, goodput = found["slo_attainment"], found["goodput_per_second"]
    assert attainment.median == pytest.approx(120 / 128)
    assert attainment.ci95 == pytest.approx((0.8815, 0.9680), abs=1e-4), "Wilson's interval of 120 of 128"
    assert goodput.median == pytest.approx(120 / 19)
    assert goodput.ci95 == pytest.approx((0.8815 * 128 / 19, 0.9680 * 128 / 19), abs=1e-3)
    assert any("0.9375" in line for line in server_lines(1, variant, found))


def test_a_perfect_share_has_an_interval() -> None:
    low, high = get_summaries(windows("a", [8] * 16, 8, [1.0] * 16))["slo_attainment"].ci95 or (0.0, 0.0)
    assert 0.95 < low < 0.98 and high == 1.0


def test_a_pause_is_in_the_rate() -> None:
    """Every eighth window takes five times as long: the median window sees nothing, two thirds of the rate are left."""
    found = get_summaries(windows("a", [8] * 64, 8, ([1.0] * 7 + [5.0]) * 8))["requests_per_second"]
    assert found.median == pytest.approx(8 * 64 / (7 * 8 + 5 * 8))
    low, high = found.ci95 or (0.0, 0.0)
    assert 3.5 < low < found.median < high < 8, "not a constant, and far from the median window's 8"


def test_the_interval_of_a_rate_covers() -> None:
    """Windows of unequal sizes and times: about 95 % of the intervals contain the true rate of 10 per second."""
    rng = np.random.default_rng(3)
    inside = 0
    for _ in range(200):
        lasted = rng.lognormal(0, 0.3, 24)
        sizes = rng.poisson(10 * lasted) + 1
        samples = [
            sample
            for number, (size, seconds) in enumerate(zip(sizes.tolist(), lasted.tolist(), strict=True))
            for sample in windows("a", [size], size, [seconds + 0.1], block=number).samples
        ]
        low, high = get_summaries(Variant(name="a", samples=tuple(samples)))["requests_per_second"].ci95 or (0.0, 0.0)
        inside += low <= 10 <= high
    assert 0.9 <= inside / 200 <= 1.0


def test_a_comparison_counts_them_too() -> None:
    """One window in eight fails: a trimmed mean or a median of the windows would see nothing."""
    a = windows("a", [8] * 64, 8, [1.0] * 64)
    b = windows("b", ([8] * 7 + [2]) * 8, 8, [1.0] * 64, position=1)
    (found,) = compare_variants(a, b, same_record=True, metrics=["slo_attainment"])
    assert found.result.verdict == "slower" and found.result.ratio == pytest.approx(0.25 ** (1 / 8), rel=0.01)


def test_answers_that_are_shorter_than_asked_are_said() -> None:
    measured = record(windows("a", [8] * 16, 8, [1.0] * 16), kind="server", endpoint="chat", output_len=40)
    notes = [note.message for note in disturbance_warnings(disturbances(measured), measured)]
    assert notes == ["a: 100.0% of the answers are shorter than asked: 33 tokens on average"]
    assert not is_slowed(measured)
