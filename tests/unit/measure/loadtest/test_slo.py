"""`--slo ttft:200ms`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_cli.core.errors import UsageError
from omni_cli.measure.bench.slo import COLUMNS, OF_WORDS, parse_slos

ALL = tuple(COLUMNS)


@given(st.sampled_from([name for name in ALL if name not in ("rtf", "underruns", *OF_WORDS)]), st.integers(1, 10**6))
def test_units(metric: str, value: int) -> None:
    assert parse_slos([f"{metric}:{value}s"], ALL) == {metric: value}
    assert parse_slos([f"{metric}:{value}ms"], ALL) == {metric: pytest.approx(value / 1000)}


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("rtf:1", 1),
        ("rtf:0.8", 0.8),
        ("rtf:.5", 0.5),
        ("e2e:2.5s", 2.5),
        ("tpot:12.5ms", 0.0125),
        ("heard:300ms", 0.3),
        ("longest_gap:1s", 1),
        ("stutter:0ms", 0),
        ("underruns:0", 0),
        ("underruns:2", 2),
        ("wer:10%", 0.1),
        ("wer:0.05", 0.05),
        ("deletions:0%", 0),
    ],
)
def test_numbers(text: str, limit: float) -> None:
    assert parse_slos([text], ALL) == {text.partition(":")[0]: pytest.approx(limit)}


@pytest.mark.parametrize(
    ("texts", "message", "hint"),
    [
        (["ttft"], "is not METRIC:LIMIT", "ttft:200ms"),
        (["tftt:200ms"], "unknown metric `tftt`", "`ttft`"),
        (["latency:200ms"], "unknown metric `latency`", "metrics are ttft, tpot"),
        (["ttft:200"], "not a number with `ms` or `s`", "ttft:200ms"),
        (["ttft:200us"], "not a number with `ms` or `s`", "ttft:200ms"),
        (["ttft:-1ms"], "not a number with", "ttft:200ms"),
        (["ttft:nans"], "not a number with", "ttft:200ms"),
        (["ttft:1e3ms"], "not a number with", "ttft:200ms"),
        (["rtf:1s"], "not a number without a unit", "rtf:0.9"),
        (["underruns:1ms"], "not a number without a unit", "rtf:0.9"),
        (["rtf:10%"], "not a number without a unit", "rtf:0.9"),
        (["wer:10ms"], "not a share", "wer:10%"),
        (["heard:0ms"], "no request can meet a limit of", None),
        (["ttft:0ms"], "no request can meet a limit of", None),
        (["ttft:1s", "ttft:2s"], "given twice", "one limit"),
        (["ttft:\x1b[31m"], "`--slo ttft:\\x1b[31m`", "ttft:200ms"),
    ],
)
def test_mistakes(texts: list[str], message: str, hint: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        parse_slos(texts, ALL)
    assert message in caught.value.message
    assert caught.value.hint is None if hint is None else hint in caught.value.hint


def test_a_metric_that_these_requests_lack_is_refused() -> None:
    with pytest.raises(UsageError, match="these requests have no ttft"):
        parse_slos(["ttft:1s"], ("e2e", "ttfp", "rtf"))
