"""The statistics that the benchmark scripts share."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

COMMON = Path(__file__).resolve().parents[3] / "benchmarks" / "common.py"


@pytest.fixture(scope="module")
def common():
    """The scripts are no package: what they share is loaded from its file."""
    spec = importlib.util.spec_from_file_location("benchmarks_common", COMMON)
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up by name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_sides_are_interleaved_in_alternating_order(common):
    assert list(common.interleaved(("a", "b"), 3)) == [(0, "a"), (0, "b"), (1, "b"), (1, "a"), (2, "a"), (2, "b")]


def test_ratio_is_that_of_the_medians(common):
    assert common.ratio_of_medians([9.0, 2.0, 4.0], [1.0, 2.0, 100.0]).value == 2.0


def test_interval_contains_the_true_ratio_and_excludes_another(common):
    rng = np.random.default_rng(5)
    drift = np.linspace(1.0, 2.0, 40)
    above, below = (drift * true * rng.normal(1, 0.01, 40) for true in (1.3, 1.0))
    ratio = common.ratio_of_medians(list(above), list(below))
    assert ratio.low < 1.3 < ratio.high
    assert ratio.low > 1.1


def test_interval_keeps_rounds_together(common):
    """Both sides of a round slow down alike, so that resampling rounds sees no doubt where there is none."""
    below = [1.0, 5.0, 2.0, 9.0, 3.0]
    ratio = common.ratio_of_medians([2 * seconds for seconds in below], below)
    assert (ratio.low, ratio.value, ratio.high) == (2.0, 2.0, 2.0)


def test_unpaired_values_are_rejected(common):
    with pytest.raises(ValueError, match="2 and 1 measurements are not pairs"):
        common.ratio_of_medians([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="0 and 0"):
        common.ratio_of_medians([], [])


def test_machine_lists_the_conditions_of_a_result(common):
    found = common.machine()
    assert found["processor"] and int(found["cores"]) >= 1
    assert len(found["load_average"].split()) == 3
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))


def test_the_ratio_within_pairs_is_not_widened_by_what_both_sides_share(common):
    source = np.random.default_rng(0)
    shared = np.exp(source.normal(0, 0.2, 100))
    above = (1.01 * shared * np.exp(source.normal(0, 0.01, 100))).tolist()
    found = common.ratio_of_pairs(above, shared.tolist())
    assert 1.005 < found.low < found.value < found.high < 1.015
    medians = common.ratio_of_medians(above, shared.tolist())
    assert medians.high - medians.low > 2 * (found.high - found.low)
    with pytest.raises(ValueError, match="not pairs"):
        common.ratio_of_pairs([1.0], [])
