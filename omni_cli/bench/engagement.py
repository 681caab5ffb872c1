"""Check by its counters that a stage ran in its execution mode."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from omni_cli.bench.protocol import LoadedStage

LEVELS = frozenset({
    "graph_pool_bytes", "predictor_graph_pool_bytes", "compiled_regions", "loaded_weight_bytes", "weight_bytes",
    "channels_last_convolutions",
})  # fmt: skip
"""Counters of a level, such as a number of graphs, and not of events."""


def since(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return the difference of counts, and levels as they are afterwards."""
    return {name: value if name in LEVELS else value - before.get(name, 0.0) for name, value in after.items()}


def unengaged(
    stage: LoadedStage, ran: Mapping[str, float], total: Mapping[str, float], varied: Collection[str]
) -> str | None:
    """Return a sentence why an iteration of the stage did not run in its mode; None if it did.

    `ran` are the counters of the iteration, `total` those since loading; both are empty for code that does not count
    yet. `varied` are the keys of this stage that are compared.
    """
    if not total:
        return None
    name = stage.name
    execution = str(stage.effective.get("execution"))
    if "cudagraph" in execution and not ran.get("graph_replays"):
        return f"{name}.execution is {execution}, but no graph was replayed"
    if "cudagraph" in execution and ran.get("eager_calls"):
        return f"{name}.execution is {execution}, but {ran['eager_calls']:g} calls of its denoiser ran eagerly"
    if "compile" in execution and not total.get("compiled_graphs"):
        return f"{name}.execution is {execution}, but nothing was compiled"
    if execution == "eager" and ran.get("graph_replays"):
        return f"{name}.execution is eager, but {ran['graph_replays']:g} graphs were replayed"
    mode = stage.effective.get("cudagraph_mode")
    if mode not in (None, "none") and not ran.get("graph_replays"):
        return f"{name}.cudagraph_mode is {mode}, but no graph was replayed"
    if mode not in (None, "none") and ran.get("predictor_eager_calls"):
        return (
            f"{name}.cudagraph_mode is {mode}, but {ran['predictor_eager_calls']:g} frames of codes were made eagerly"
        )
    if "enable_vae_tiling" in varied and stage.effective.get("vae_tiling") and not ran.get("tiled_decodes"):
        return f"{name}.enable_vae_tiling is true, but nothing was decoded in tiles: outputs are smaller than a tile"
    if "output_copy" in varied and not ran.get("copies"):
        return f"{name}.output_copy is {stage.effective.get('output_copy')}, but nothing was copied"
    if stage.effective.get("output_copy") == "async" and ran.get("pinned_copies", 0) < ran.get("copies", 0):
        missing = ran["copies"] - ran.get("pinned_copies", 0)
        return f"{name}.output_copy is async, but {missing:g} copies went to unpinned memory"
    return None
