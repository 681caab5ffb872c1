"""The stages of several replicas as those of one engine."""

from __future__ import annotations

import dataclasses

from omni_cli.errors import StageError
from omni_cli.outputs import RequestResult, StageInfo


class ReplicaStages:
    """What replicas have said of their stages; one that has been replaced is forgotten."""

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas
        self._heard: dict[str, tuple[StageInfo, ...]] = {}

    def heard(self, replica: str, stages: tuple[StageInfo, ...]) -> None:
        """`replica` has said that its stages are these now."""
        self._heard.pop(replica, None)
        self._heard[replica] = stages
        while len(self._heard) > self._replicas:
            # That which has been silent for longest.
            del self._heard[next(iter(self._heard))]

    @property
    def merged(self) -> tuple[StageInfo, ...]:
        """Each stage once: the longest time to load, and the memory of all replicas together."""
        merged: dict[str, StageInfo] = {}
        for stages in self._heard.values():
            for stage in stages:
                merged[stage.name] = _both(merged[stage.name], stage) if stage.name in merged else stage
        return tuple(merged.values())


def is_stages_fault(result: RequestResult) -> bool:
    """Whether a stage ended under the request, which may have nothing to do with it."""
    return isinstance(result.error, StageError) and result.error.request_id is None


def _both(one: StageInfo, other: StageInfo) -> StageInfo:
    names = {*one.peak_memory_bytes, *other.peak_memory_bytes}
    peaks = {name: one.peak_memory_bytes.get(name, 0) + other.peak_memory_bytes.get(name, 0) for name in names}
    return dataclasses.replace(one, load_s=max(one.load_s, other.load_s), peak_memory_bytes=peaks)
