"""A real benchmark beside busy programs: the record contains them, and the command warns about them."""

from __future__ import annotations

import pytest

from omni_cli.records.record import load_record
from omni_cli.stats.comparable import machine_disturbances

pytestmark = pytest.mark.slow


def test_a_busy_neighbour_is_recorded_and_named(disturbed) -> None:
    record = load_record(disturbed.path)
    found = record.utilisation
    assert found is not None and found.error is None
    assert len(found.block_end_s) == len({sample.block for sample in record.variants[0].samples})
    assert found.end_s[-1] == pytest.approx(found.block_end_s[-1], abs=1.0)
    others = [busy - own for busy, own in zip(found.busy_cores, found.own_cores, strict=True)]
    assert max(found.own_cores) > 0.2 and sum(others) / len(others) > 0.5
    assert found.cost_s / found.end_s[-1] < 0.02
    (neighbour,) = [item for item in machine_disturbances(found) if item.kind == "neighbour"]
    assert neighbour.share > 0.5
    assert "warning: a noisy neighbour: other programs used" in disturbed.stderr
    assert "hint: stop them, or measure where nothing else runs" in disturbed.stderr
