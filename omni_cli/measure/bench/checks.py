"""Checks of a measurement: variants fit into memory, requested settings ran, and the parts of the times add up."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import psutil

from omni_cli.core.machine import read_gpus, read_memory
from omni_cli.engine.devices import has_cuda_device
from omni_cli.measure.bench.iteration import median_share
from omni_cli.measure.bench.protocol import LoadedStage
from omni_cli.measure.bench.variant_configs import ENVIRONMENT, VariantConfig
from omni_cli.requests.outputs import stage_warnings

TOLERANCE = 0.1
"""Allowed deviation of the sum of a time's parts from that time, as a share of it; `median_share` over the runs."""

HEADROOM = 0.9
"""Share of the free memory that is used; the rest is for inputs, outputs and other programs."""


@dataclass(frozen=True)
class Ineffective:
    """A key of a stage whose `effective` value differs from the `requested` one."""

    stage: str
    key: str
    requested: object
    effective: object


def ineffective(stages: Sequence[LoadedStage]) -> tuple[Ineffective, ...]:
    """Return the settings in which the loaded engines differ from their configuration."""
    differing = []
    for stage in stages:
        read_back = {**stage.settings, **stage.effective}
        differing += [
            Ineffective(stage.name, key, requested, read_back[key])
            for key, requested in stage.requested.items()
            if key in read_back and read_back[key] != requested
        ]
    return tuple(differing)


def setting_not_in_effect(variant: VariantConfig, stages: Sequence[LoadedStage]) -> str | None:
    """Return a sentence if a varied setting did not take effect, because its times would be another setting's."""
    for item in ineffective(stages):
        if item.key in variant.varied_keys(item.stage):
            return f"{item.stage}.{item.key} is {_word(item.effective)}, not {_word(item.requested)} as requested"
    return None


def mode_not_used(
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
    if "early_start" in varied and stage.effective.get("early_start") and not ran.get("early_requests"):
        return f"{name}.early_start is true, but every request began with its whole text"
    if "output_copy" in varied and not ran.get("copies"):
        return f"{name}.output_copy is {stage.effective.get('output_copy')}, but nothing was copied"
    if stage.effective.get("output_copy") == "async" and ran.get("pinned_copies", 0) < ran.get("copies", 0):
        missing = ran["copies"] - ran.get("pinned_copies", 0)
        return f"{name}.output_copy is async, but {missing:g} copies went to unpinned memory"
    return None


def find_unaccounted_time(shares: Mapping[str, Sequence[float]]) -> str | None:
    """Return a sentence if the parts of the times do not add up; `shares` are by kind."""
    words = {
        "stages": "the stages' times make up {:.0%} of the end-to-end time",
        "steps": "the parts of the diffusion stage make up {:.0%} of its time",
        "tokens": "the tokens' times make up {:.0%} of their stage's time",
    }
    for kind, values in shares.items():
        share = median_share(values)
        if abs(share - 1) > TOLERANCE:
            return f"{words[kind].format(share)}, more than {TOLERANCE:.0%} off"
    return None


def warnings(variant: VariantConfig, stages: Sequence[LoadedStage]) -> list[str]:
    """Return ineffective settings other than the varied ones, and the stages' own warnings."""
    by_key: dict[tuple[str, str, str], list[str]] = {}
    for item in ineffective(stages):
        if (item.key, item.requested) == ("output_copy", "async") and not has_cuda_device():
            continue  # a default that does not apply: without a device the outputs are on the host already
        by_key.setdefault((item.key, _word(item.requested), _word(item.effective)), []).append(item.stage)
    texts = [
        f"{key} is {effective}, not {requested} as configured ({', '.join(names)})"
        for (key, requested, effective), names in by_key.items()
    ]
    texts += [warning for stage in stages for warning in stage_warnings(stage.name, stage.effective)]
    wanted = variant.environment.get("OMP_NUM_THREADS", "")
    threads = {stage.settings.get("num_threads") for stage in stages} - {None}
    if wanted.isdigit() and threads and threads != {int(wanted)}:
        used = ", ".join(str(number) for number in sorted(threads, key=str))
        texts.append(f"{ENVIRONMENT}OMP_NUM_THREADS={wanted} had no effect: the engine chose {used} threads itself")
    return texts


def _word(value: object) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class Free:
    """Free bytes on the host, within its container's limit, and on each device."""

    host: int
    devices: tuple[int, ...] = ()


def read_free() -> Free:
    return Free(read_memory().available_bytes, tuple(gpu.free_bytes for gpu in read_gpus().devices))


def private_bytes(pid: int) -> int:
    """Return the bytes of a process and its descendants that would not be shared with a copy of them."""
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    total = 0
    for process in processes:
        try:
            total += process.memory_full_info().uss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total


def lacking(used: Free, free: Free, copies: int) -> str | None:
    """Return the reason why `copies` more of a process that uses `used` do not fit into `free`; None if they do."""
    needed = used.host * copies
    if needed > free.host * HEADROOM:
        return f"{_gib(needed)} of memory for {copies} more, {_gib(free.host)} free"
    for index, (taken, left) in enumerate(zip(used.devices, free.devices, strict=False)):
        if taken * copies > left * HEADROOM:
            return f"{_gib(taken * copies)} of device {index}'s memory for {copies} more, {_gib(left)} free"
    return None


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"


def check_cancelled() -> None:
    """Raise the cancellation that a runner held back, in order to return what it had measured."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
