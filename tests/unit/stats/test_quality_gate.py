"""Limits on how far outputs may differ: `--quality psnr_db>=40`."""

from __future__ import annotations

import pytest

from omni_cli.cli.gate_options import GateOptions
from omni_cli.config.gate_limits import GateLimits, QualityLimit, merge_limits, parse_quality
from omni_cli.errors import UsageError
from omni_cli.results import EXIT_CODES, MEASURES, Outputs
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
