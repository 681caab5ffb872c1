"""The referee's rules on the windows of one server."""

from __future__ import annotations

import pytest

from omni_cli.records.record import Sample, Variant
from omni_cli.records.results import Difference
from omni_cli.report.comparison_words import not_comparable
from omni_cli.stats.referee import conditions


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
    note = not_comparable([Difference("conditions.bundled", 1.0, 2.0)])
    assert "conditions.bundled (1.0 against 2.0)" in note.message and note.hint is not None and "--strict" in note.hint
