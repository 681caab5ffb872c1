"""Counts of requests are those of all requests, whatever windows they were in."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from support.bench_records import record

from omni_cli.records.record import Sample, Variant
from omni_cli.report.bench_view import variant_section
from omni_cli.report.disturbance_words import disturbance_warnings
from omni_cli.stats.blocks import get_summaries, independent_units
from omni_cli.stats.comparable import disturbances, is_slowed
from omni_cli.stats.compare import compare_variants


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
    assert attainment.ci95 == pytest.approx((0.774, 1.0), abs=1e-3), "a window is bad as a whole: 16 windows, not 128"
    assert goodput.median == pytest.approx(120 / 19)
    low, high = goodput.ci95 or (0.0, 0.0)
    assert 0 <= low < 0.774 * 128 / 19 and high > 7, "the window was longer, too"
    _, table, _ = variant_section(1, variant, found).parts
    assert any("0.9375" in cell for row in table.rows for cell in row)


@pytest.mark.parametrize("good", [0, 8])
def test_equal_windows_have_an_interval(good: int) -> None:
    """At least Wilson's of 128 independent requests, 0.0291 wide; without eight windows there is none."""
    found = get_summaries(windows("a", [good] * 16, 8, [1.0] * 16))
    low, high = found["slo_attainment"].ci95 or (0.0, 0.0)
    assert (low, high)[good == 8] == good / 8 and 0.0291 < high - low < 0.06
    low, high = found["goodput_per_second"].ci95 or (0.0, 0.0)
    assert low <= good <= high and high - low > 8 * 0.0291
    assert get_summaries(windows("a", [good] * 7, 8, [1.0] * 7))["slo_attainment"].ci95 is None


def queued_window(rng: np.random.Generator, utilisation: float, size: int = 16) -> tuple[int, float]:
    """Return (requests answered within three service times, seconds) of one server that begins idle, by Lindley."""
    arrivals = np.sort(rng.uniform(0, size / utilisation, size))
    latency, latencies = 0.0, []
    for gap in np.diff(arrivals, prepend=0.0):
        latency = max(latency - gap, 0.0) + 1.0
        latencies.append(latency)
    return sum(value <= 3 for value in latencies), float(arrivals[-1] + latency)


@pytest.mark.parametrize("utilisation", [0.7, 0.9, 1.0])
def test_the_interval_of_a_count_covers(utilisation: float) -> None:
    """Requests that wait in one queue meet a limit together: as independent ones, 70 to 80 % of the intervals would
    contain the true share, and as many those of the goodput."""
    rng = np.random.default_rng(50)
    pool = [queued_window(rng, utilisation) for _ in range(4000)]
    count, seconds = (float(np.sum(part)) for part in zip(*pool, strict=True))
    inside = {"slo_attainment": 0, "goodput_per_second": 0}
    for _ in range(150):
        chosen = [pool[number] for number in rng.integers(len(pool), size=40)]
        found = get_summaries(windows("a", [good for good, _ in chosen], 16, [lasted for _, lasted in chosen]))
        for name, true in (("slo_attainment", count / 16 / len(pool)), ("goodput_per_second", count / seconds)):
            low, high = found[name].ci95 or (0.0, 0.0)
            inside[name] += low <= true <= high
    # Three standard errors of a proportion below the nominal coverage.
    assert min(inside.values()) / 150 >= 0.95 - 3 * (0.95 * 0.05 / 150) ** 0.5


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
    assert found.result.verdict == "slower" and found.result.ratio == pytest.approx(58 / 64)


def test_windows_without_a_good_request_are_compared() -> None:
    a = windows("a", [8, 6] * 16, 8, [1.0] * 32)
    for good in ([0, 4] * 16, [0] * 32):
        (found,) = compare_variants(a, windows("b", good, 8, [1.0] * 32), same_record=False, metrics=["slo_attainment"])
        assert found.result.verdict == "slower", found.result.reason
    assert found.result.ratio is not None and found.result.ratio < 0.02


def test_equal_shares_are_not_known_exactly() -> None:
    """All of 128 requests are good in both: that shows no more than shares within a few percent of each other."""
    a, b = (windows(name, [8] * 16, 8, [1.0] * 16) for name in "ab")
    (found,) = compare_variants(a, b, same_record=False, metrics=["slo_attainment"])
    low, high = found.result.ci95 or (1.0, 1.0)
    assert 0.95 < low < 0.98 and 1.02 < high < 1.05 and found.result.verdict == "inconclusive"


def test_equal_values_are_not_correlated() -> None:
    """In 6 of 200 windows at random, requests fail: the others are equal, and neighbours are not alike."""
    values = np.ones(200)
    values[np.random.default_rng(4).integers(200, size=6)] = 0.5
    units = independent_units(values)
    assert len(units.values) > 50 and units.inflation == 1.0


def test_answers_that_are_shorter_than_asked_are_said() -> None:
    measured = record(windows("a", [8] * 16, 8, [1.0] * 16), kind="server", endpoint="chat", output_len=40)
    notes = [note.message for note in disturbance_warnings(disturbances(measured), measured)]
    assert notes == ["a: 100.0% of the answers are shorter than asked: 33 tokens on average"]
    assert not is_slowed(measured)


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ([0.0] * 12, [0.0] * 12, "no difference"),
        ([0.0] * 12, [0.2] * 12, "slower"),
        ([0.0, 0.4] * 6, [0.0] * 12, "faster"),
        ([0.0004] * 12, [0.0008] * 12, "no difference"),
    ],
)
def test_a_metric_that_is_usually_0_is_compared(a: list[float], b: list[float], verdict: str) -> None:
    """Below a millisecond of stutter is none; the summary is the mean of all requests."""
    variants = []
    for position, values in enumerate((a, b)):
        samples = windows("ab"[position], [8] * 12, 8, [1.0] * 12, position=position).samples
        measured = zip(samples, values, strict=True)
        with_stutter = tuple(replace(sample, metrics={"stutter_s": value}) for sample, value in measured)
        variants.append(Variant(name="ab"[position], samples=with_stutter))
    (found,) = compare_variants(*variants, same_record=True, metrics=["stutter_s"])
    assert found.result.verdict == verdict and found.result.ci95 is not None
    assert get_summaries(variants[0])["stutter_s"].median == pytest.approx(sum(a) / len(a))
