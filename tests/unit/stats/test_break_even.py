"""Gain and cost of a mode, and the number of requests after which it pays off."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec import UNSET, UnsetType
from support.bench_records import record, variant

from omni_cli.records.record import Memory, Variant
from omni_cli.records.results import BreakEven, RecordOrigin
from omni_cli.report.comparison_view import compare_document
from omni_cli.report.comparison_words import break_even_sentence
from omni_cli.stats.verdicts import Pair, compare_within

MIB = 2**20


def measured(name: str, seconds: float, *, compile_s: float = 0.0, reserved: int = 0, **fields: Any) -> Variant:
    """40 blocks of two runs that take about `seconds`, each of 2 requests."""
    noise = np.random.default_rng(len(name)).normal(1, 0.002, (40, 2))
    slots = (0, 3) if name.endswith("eager") else (1, 2)
    return variant(
        name,
        seconds * noise,
        slots=slots,
        work={"requests": 2.0},
        settings={"execution": name.partition("=")[2]},
        effective={"engagement": {"x": {"compile_s": compile_s}}},
        memory=Memory(peak_reserved_bytes=reserved or None),
        **fields,
    )


def pair_of(a: Variant, b: Variant) -> Pair:
    (pair,) = compare_within(record(a, b)).pairs
    return pair


def break_even_of(pair: Pair) -> BreakEven | UnsetType:
    return pair.comparisons[0].break_even


EAGER = measured("execution=eager", 0.2, reserved=100 * MIB)


def test_a_faster_mode_pays_for_itself_after_so_many_requests() -> None:
    pair = pair_of(EAGER, measured("execution=compile", 0.16, compile_s=7.0, reserved=112 * MIB))
    found = break_even_of(pair)
    # 40 ms of a run, which is two requests.
    assert found.gained_s == pytest.approx(0.02, rel=0.02)
    assert found.requests == pytest.approx(350, rel=0.02)
    assert (found.bytes_more, found.preparation_s, found.mode) == (12 * MIB, 7.0, "execution=compile")
    low, high = found.ci95
    assert low <= found.gained_s <= high
    sentence = break_even_sentence(pair)
    assert sentence.startswith("Worth it: execution=compile gains ")
    assert "+12 MiB and 7.000 s to compile or capture; pays for itself after " in sentence


def test_equal_preparation_is_not_a_cost() -> None:
    def with_copy(mode: str, seconds: float, compile_s: float) -> Variant:
        found = measured(f"output_copy={mode}", seconds, compile_s=compile_s)
        return msgspec.structs.replace(found, settings={"output_copy": mode, "execution": "compile"})

    pair = pair_of(with_copy("sync", 0.2, 7.0), with_copy("async", 0.16, 7.1))
    assert break_even_of(pair).preparation_s == 0
    assert break_even_sentence(pair).startswith("Worth it: output_copy=async gains ")
    assert "compile or capture" not in break_even_sentence(pair)


def test_it_is_about_the_mode_whichever_comes_first() -> None:
    compiled = measured("execution=compile", 0.16, compile_s=7.0, reserved=112 * MIB)
    forward, backward = break_even_of(pair_of(EAGER, compiled)), break_even_of(pair_of(compiled, EAGER))
    assert backward.mode == "execution=compile" and backward.gained_s > 0
    assert backward.bytes_more == forward.bytes_more
    assert backward.requests == pytest.approx(forward.requests, rel=0.01)


def test_a_mode_without_gain_is_not_worth_it() -> None:
    pair = pair_of(EAGER, measured("execution=compile", 0.2, compile_s=7.0, reserved=112 * MIB))
    assert break_even_of(pair).requests is None
    assert break_even_sentence(pair) == (
        "Not worth it: execution=compile gains nothing per request for +12 MiB and 7.000 s to compile or capture"
    )
    slower = pair_of(EAGER, measured("execution=compile", 0.25, compile_s=7.0))
    assert break_even_of(slower).gained_s < 0 and break_even_of(slower).requests is None
    assert break_even_sentence(slower).startswith("Not worth it: execution=compile gains -")


def test_variants_without_a_mode_have_nothing_to_pay_back() -> None:
    a, b = (measured(name, 0.2) for name in ("x=eager", "y=compile"))
    plain = [Variant(name=v.name, samples=v.samples, settings={"max_num_seqs": n}) for n, v in enumerate((a, b))]
    pair = pair_of(*plain)
    assert break_even_of(pair) is UNSET and break_even_sentence(pair) is None


def test_the_document_has_it_with_the_end_to_end_time() -> None:
    result = compare_within(record(EAGER, measured("execution=compile", 0.16, compile_s=7.0)))
    (entry,) = compare_document(result, RecordOrigin("a"), RecordOrigin("b")).comparisons
    assert entry.break_even.preparation_s == 7.0 and entry.break_even.requests > 0
    assert entry.ratio_of_medians == pytest.approx(entry.b_median / entry.a_median)
