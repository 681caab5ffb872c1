"""The declarations of metrics, their page in the documentation, and the derivation from a timeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from omni_cli.records.metrics import METRICS, Timeline, get_unit, higher_is_better, is_percentile, percentile_name

PAGE = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()


def test_the_page_has_every_declaration() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `") and not line.startswith("| `omni_")]
    assert rows == [
        f"| `{metric.name}` | {get_unit(metric.name)} | {'higher' if metric.higher_is_better else 'lower'} |"
        f" {metric.description} |"
        for metric in METRICS.values()
    ]


@pytest.mark.parametrize("metric", METRICS)
def test_rates_are_better_if_higher(metric: str) -> None:
    """Also those of a later stage, and those of earlier records that are no longer declared."""
    is_rate = metric.endswith("_per_second") or metric in ("rtfx", "slo_attainment")
    assert higher_is_better(metric) == higher_is_better(f"talker.{metric}") == is_rate
    assert higher_is_better("thinker_tokens_per_second") and not higher_is_better("backbone_p90_s")


def test_names_of_percentiles() -> None:
    assert percentile_name("ttft_s", 90) == "ttft_p90_s"
    assert is_percentile("ttft_p90_s") and not is_percentile("ttft_s")


def test_a_timeline_on_any_clock() -> None:
    """Of a server's answer, whose last chunk is not its end, and of a stage, whose time begins with 0."""
    answer = Timeline(
        start_s=10.0, end_s=13.0, first_token_s=10.5, streaming_s=2.0, gaps_s=(1.0, 1.0), later_tokens=4,
        first_audio_s=11.0, audio_s=2.0,
    )  # fmt: skip
    assert answer.row() == {
        "e2e_s": 3.0, "ttft_s": 0.5, "tpot_s": 0.5, "itl_max_s": 1.0, "ttfp_s": 1.0, "rtf": 1.5,
    }  # fmt: skip
    stage = Timeline(end_s=0.5, first_token_s=0.5, streaming_s=0.0, later_tokens=0)
    assert {name for name, value in stage.row().items() if value is not None} == {"e2e_s", "ttft_s"}
