"""Limits on how far outputs may differ: `--quality psnr_db>=40`."""

from __future__ import annotations

from typing import Any

import pytest

from omni_cli.cli.options import GateOptions
from omni_cli.config.gate_limits import GateLimits, QualityLimit, merge_limits, parse_quality
from omni_cli.core.errors import UsageError
from omni_cli.records.results import EXIT_CODES, MEASURES, MeasureMean, Outputs
from omni_cli.report.comparison_view import get_limits
from omni_cli.report.renderers import limit_lines
from omni_cli.stats.gate import judge

PSNR = QualityLimit("psnr_db", ">=", 40.0)


def verdict(outputs: Outputs, *limits: QualityLimit) -> tuple[str, tuple[str, ...]]:
    gate = judge(GateLimits({}, quality=limits), [], [], {("a", "b"): outputs})
    return gate.verdict, gate.reasons


def test_outputs_within_the_limits_pass_and_others_are_a_mismatch() -> None:
    close = Outputs(False, 3.0, psnr_db=41.0, ssim=0.97)
    assert verdict(close, PSNR) == ("pass", ())
    assert verdict(close, PSNR, QualityLimit("ssim", ">=", 0.98)) == (
        "output mismatch",
        ("outputs of `b` and `a` have ssim 0.97; it must be ssim>=0.98",),
    )
    assert verdict(close, QualityLimit("max_abs_diff", "<=", 3.0)) == ("pass", ())
    assert verdict(close, QualityLimit("max_abs_diff", "<=", 2.0))[0] == "output mismatch"
    assert EXIT_CODES["output mismatch"] == 5


def test_equal_outputs_pass_and_unmeasured_ones_do_not() -> None:
    assert verdict(Outputs(True, 0.0), PSNR) == ("pass", ())
    assert verdict(Outputs(), PSNR)[0] == "inconclusive"
    assert verdict(Outputs(False, None, exact_match=0.5), PSNR) == (
        "output mismatch",
        ("outputs of `b` and `a` differ and have no psnr_db, which must be psnr_db>=40",),
    )


def test_outputs_of_another_number_or_size_are_a_mismatch() -> None:
    """The others meet the limit; words, prompts and tokens can be compared whatever the size is."""
    sizes = Outputs(False, None, psnr_db=50.0, wer=0.0, clip_score=30.0, exact_match=1.0, compared=8, unmatched=2)
    mismatch = "outputs of `b` and `a` must have psnr_db>=40; 2 of 8 requests have another number, size, length or rate"
    assert verdict(sizes, PSNR) == ("output mismatch", (mismatch,))
    numbers = Outputs(False, None, psnr_db=50.0, wer=0.0, clip_score=30.0, exact_match=1.0, compared=8, missing=1)
    words = [QualityLimit(name, "<=" if name == "wer" else ">=", 0.0) for name in ("wer", "clip_score", "exact_match")]
    assert [verdict(sizes, limit)[0] for limit in words] == ["pass"] * 3
    assert [verdict(numbers, limit)[0] for limit in words] == ["output mismatch"] * 2 + ["pass"]


def test_a_limit_is_a_measure_a_relation_and_a_number() -> None:
    assert parse_quality(" psnr_db >= 40 ", MEASURES) == PSNR
    assert parse_quality("max_abs_diff<=1e-3", MEASURES) == QualityLimit("max_abs_diff", "<=", 0.001)
    assert GateOptions(quality=["psnr_db>=40"]).limits() == merge_limits(None, quality=(PSNR,))
    for text, message in (
        ("psnr_db=40", "expected a limit such as psnr_db>=40"),
        ("psnr_db>=high", "expected a limit"),
        ("psnr>=40", "no measure `psnr`; did you mean `psnr_db`"),
    ):
        with pytest.raises(UsageError, match="invalid value for `--quality`") as raised:
            GateOptions(quality=[text]).limits()
        assert message in raised.value.message


def of_eight(worst: float, mean: float, ci95: tuple[float, float]) -> Outputs:
    return Outputs(False, 3.0, psnr_db=worst, compared=8, means={"psnr_db": MeasureMean(8, mean, ci95)})


def test_a_limit_passes_if_every_output_and_the_interval_of_the_mean_meet_it() -> None:
    assert verdict(of_eight(41.0, 43.0, (41.5, 44.5)), PSNR) == ("pass", ())
    assert verdict(of_eight(39.9, 43.0, (41.5, 44.5)), PSNR)[0] == "output mismatch", "one output misses it"
    found, (reason,) = verdict(of_eight(40.1, 41.0, (39.0, 43.0)), PSNR)
    assert found == "inconclusive"
    assert reason.endswith("but the mean's interval [39, 43] of 8 requests reaches beyond psnr_db>=40")


def test_the_verdict_says_for_how_many_prompts_it_is_sure() -> None:
    gate: Any = judge(GateLimits({}, quality=(PSNR,)), [], [], {("a", "b"): of_eight(41.0, 43.0, (41.5, 44.5))})
    (found,) = gate.quality
    assert (found.limit, found.verdict, found.worst, found.compared) == ("psnr_db>=40", "pass", 41.0, 8)
    assert found.sure_share == pytest.approx(0.05 ** (1 / 8)), "8 of 8 happen in 5 % of the cases with this share"
    (line,) = limit_lines(get_limits(gate, []))
    assert " ".join(line.split()) == "psnr_db>=40 worst 41, mean 43 [41.5, 44.5] of 8; sure for 69% of prompts pass"
    share = Outputs(False, None, exact_match=0.9, compared=10)
    gate = judge(GateLimits({}, quality=(QualityLimit("exact_match", ">=", 0.9),)), [], [], {("a", "b"): share})
    assert gate.quality[0].verdict == "pass" and gate.quality[0].sure_share is None, "one of them missed"
