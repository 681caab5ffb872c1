"""Counters reveal a mode that did not run as requested."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from omni_cli.backends.execution.counters import since
from omni_cli.measure.bench.checks import mode_not_used
from omni_cli.measure.bench.protocol import LoadedStage, Ran
from omni_cli.measure.bench.record_builder import Measured
from omni_cli.measure.bench.variant_configs import VariantConfig


def stage(**effective: Any) -> LoadedStage:
    return LoadedStage("x", "diffusion", 1.0, requested={}, settings={}, effective=dict(effective))


CASES = [
    ({"execution": "cudagraph"}, {"graph_replays": 10, "eager_calls": 0}, None),
    ({"execution": "cudagraph"}, {"graph_replays": 0, "eager_calls": 10}, "no graph was replayed"),
    ({"execution": "cudagraph"}, {"graph_replays": 9, "eager_calls": 1}, "1 calls of its denoiser ran eagerly"),
    ({"execution": "eager"}, {"graph_replays": 0, "eager_calls": 10}, None),
    ({"execution": "eager"}, {"graph_replays": 3}, "3 graphs were replayed"),
    ({"execution": "compile"}, {"eager_calls": 10}, "nothing was compiled"),
    ({"execution": "compile"}, {"eager_calls": 10, "compiled_graphs": 2}, None),
    ({"cudagraph_mode": "full"}, {"graph_replays": 0, "eager_calls": 8}, "no graph was replayed"),
    ({"cudagraph_mode": "full"}, {"graph_replays": 8}, None),
    ({"cudagraph_mode": "full"}, {"graph_replays": 8, "predictor_graph_replays": 8, "predictor_eager_calls": 0}, None),
    (
        {"cudagraph_mode": "full"},
        {"graph_replays": 8, "predictor_eager_calls": 8},
        "8 frames of codes were made eagerly",
    ),
    ({"cudagraph_mode": "none"}, {"eager_calls": 8}, None),
    ({"output_copy": "async"}, {"copies": 4, "pinned_copies": 4}, None),
    ({"output_copy": "async"}, {"copies": 4, "pinned_copies": 3}, "1 copies went to unpinned memory"),
    ({"output_copy": "sync"}, {"copies": 4}, None),
]


@pytest.mark.parametrize(("effective", "counters", "reason"), CASES)
def test_counters_against_the_requested_mode(effective: dict[str, str], counters: dict, reason: str | None) -> None:
    found = mode_not_used(stage(**effective), counters, counters, varied=())
    assert found is None if reason is None else reason in found


def test_a_comparison_of_copies_needs_copies() -> None:
    counters = {"copies": 0, "eager_calls": 1}
    assert mode_not_used(stage(output_copy="sync"), counters, counters, varied=()) is None
    found = mode_not_used(stage(output_copy="sync"), counters, counters, varied=("output_copy",))
    assert found == "x.output_copy is sync, but nothing was copied"


def test_code_that_does_not_count_proves_nothing_and_is_not_accused() -> None:
    assert mode_not_used(stage(execution="cudagraph"), {}, {}, varied=("execution",)) is None


def test_counters_are_of_one_run_and_levels_are_as_they_are() -> None:
    before = {"graph_replays": 10, "graph_pool_bytes": 100.0}
    after = {"graph_replays": 14, "graph_pool_bytes": 150.0, "copies": 2}
    assert since(before, after) == {"graph_replays": 4, "graph_pool_bytes": 150.0, "copies": 2}


def ran(**counters: Mapping[str, float]) -> Ran:
    return Ran(0.1, {}, {}, "x", {}, {}, {name: dict(values) for name, values in counters.items()})


def test_a_stage_that_is_loaded_again_counts_from_its_new_beginning() -> None:
    measured = Measured(VariantConfig("a"))
    loaded = LoadedStage("x", "diffusion", 1.0, {}, {}, {}, execution_counters={"graph_replays": 2})
    measured.add_stages((loaded,))
    assert measured.ran(0, ran(x={"graph_replays": 12})) == {"x": {"graph_replays": 10}}
    measured.add_stages((loaded,))
    assert measured.ran(0, ran(x={"graph_replays": 5})) == {"x": {"graph_replays": 3}}
    assert measured.effective()["engagement"] == {"x": {"graph_replays": 5}}


def test_tiling_that_tiled_nothing_is_not_in_effect() -> None:
    tiled = stage(execution="eager", vae_tiling=True)
    varied = ("enable_vae_tiling",)
    assert "nothing was decoded in tiles" in (
        mode_not_used(tiled, {"tiled_decodes": 0}, {"eager_calls": 4}, varied) or ""
    )
    assert mode_not_used(tiled, {"tiled_decodes": 2}, {"eager_calls": 4}, varied) is None
    assert mode_not_used(stage(execution="eager", vae_tiling=False), {}, {"eager_calls": 4}, varied) is None


def test_an_early_start_of_no_request_is_not_in_effect() -> None:
    early, varied = stage(early_start=True), ("early_start",)
    assert "every request began with its whole text" in (
        mode_not_used(early, {"early_requests": 0}, {"early_requests": 3}, varied) or ""
    )
    assert mode_not_used(early, {"early_requests": 1}, {"early_requests": 3}, varied) is None
    assert mode_not_used(early, {"early_requests": 0}, {"early_requests": 3}, ()) is None
