"""The referee's rules on the windows of one server."""

from __future__ import annotations

import pytest
from support.bench_records import record

from omni_cli.records.record import Sample, Variant
from omni_cli.report.comparison_words import not_comparable
from omni_cli.report.disturbance_words import disturbance_warnings
from omni_cli.stats.comparable import Disturbance
from omni_cli.stats.referee import OBSERVATIONS, as_differences, conditions, inequalities, tokens_per_chunk


@pytest.mark.parametrize(
    ("times", "factor"),
    [
        ([0.35] * 2 + [0.05] * 6, 7.0),
        ([0.35] * 6 + [0.05] * 2, 7.0),
        ([0.06] * 6 + [0.05] * 2, None),  # 1.2 times, for a change at any time
        ([0.35] + [0.05] * 7, None),
        ([0.05, 0.06, 0.05, 0.05, 0.06, 0.05, 0.05, 0.05], None),
        ([0.35] * 8, None),
    ],
)
def test_a_server_that_was_not_warm(times: list[float], factor: float | None) -> None:
    samples = tuple(Sample(block=n, position=0, number=n, e2e_s=seconds) for n, seconds in enumerate(times))
    found = conditions(Variant(name="a", samples=samples))
    assert [(item.kind, item.amount) for item in found] == (
        [] if factor is None else [("warming up", pytest.approx(factor))]
    )


def test_unequal_conditions_have_a_way_out() -> None:
    unequal = [Disturbance("bundled", 1.0, 2.0), Disturbance("warming up", 1.0, 6.65, variant="b")]
    note = not_comparable(as_differences(unequal))
    assert "conditions.bundled (1.0 against 2.0), conditions.warming up (b took 6.65 times as long at" in note.message
    assert note.hint is not None and "--strict" in note.hint


def test_reasoning_that_is_not_sent_is_in_no_chunk() -> None:
    requests: dict[str, tuple[float | None, ...]] = {
        "e2e_s": (1.0, 1.0), "output_tokens": (110, 10), "chunks": (10, 10), "hidden_tokens": (100, None)
    }  # fmt: skip
    assert (
        tokens_per_chunk(Variant(name="a", samples=(Sample(block=0, position=0, e2e_s=1.0, requests=requests),))) == 1
    )


@pytest.mark.parametrize(("tokens", "words"), [(1.0, "asked: 1 token on"), (2.5, "asked: 2.5 tokens on")])
def test_one_token_is_no_plural(tokens: float, words: str) -> None:
    (note,) = disturbance_warnings([Disturbance("short answers", 1.0, tokens, variant="a")], record())
    assert words in note.message


@pytest.mark.parametrize(
    ("a", "b", "unequal"),
    [
        ((2, None), (None, None), [(2, 0)]),  # a closed loop
        ((2, 2), (None, 3), [(2, 0)]),
        ((None, 9), (4, 4), [(0, 4)]),
        ((2, 2), (None, 2), []),  # the other one has not served more, either
        ((2, 2), (4, 4), [(2, 4)]),
        ((2, 2), (2, 2), []),
        ((None, 9), (None, 4), []),
    ],
)
def test_a_limit_is_unequal_where_the_other_server_went_beyond_it(
    a: tuple[int | None, int | None], b: tuple[int | None, int | None], unequal: list[tuple[int, int]]
) -> None:
    variants = []
    for name, (limit, served) in {"a": a, "b": b}.items():
        observed = {"parallel_limit": limit} | ({} if served is None else {"served_at_once": served})
        variants.append(Variant(name=name, effective={"server": {OBSERVATIONS: observed}}))
    assert [(item.share, item.amount) for item in inequalities(*variants)] == unequal
