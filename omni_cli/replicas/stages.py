"""Merge the stages of several replicas."""

from __future__ import annotations

import dataclasses

from omni_cli.errors import StageError
from omni_cli.outputs import RequestResult, StageInfo


class ReplicaStages:
    """Last reported stages of each replica; a replaced replica is dropped."""

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas
        self._reported: dict[str, tuple[StageInfo, ...]] = {}

    def update(self, replica: str, stages: tuple[StageInfo, ...]) -> None:
        """Record the current stages of `replica`."""
        self._reported.pop(replica, None)
        self._reported[replica] = stages
        while len(self._reported) > self._replicas:
            # The replica with the oldest report.
            del self._reported[next(iter(self._reported))]

    @property
    def merged(self) -> tuple[StageInfo, ...]:
        """Each stage once, with the longest load time and the memory of all replicas combined."""
        merged: dict[str, StageInfo] = {}
        for stages in self._reported.values():
            for stage in stages:
                merged[stage.name] = _both(merged[stage.name], stage) if stage.name in merged else stage
        return tuple(merged.values())


def is_stages_fault(result: RequestResult) -> bool:
    """True if a stage ended during the request, which need not be the cause."""
    return isinstance(result.error, StageError) and result.error.request_id is None


def _both(one: StageInfo, other: StageInfo) -> StageInfo:
    names = {*one.peak_memory_bytes, *other.peak_memory_bytes}
    peaks = {name: one.peak_memory_bytes.get(name, 0) + other.peak_memory_bytes.get(name, 0) for name in names}
    return dataclasses.replace(one, load_s=max(one.load_s, other.load_s), peak_memory_bytes=peaks)
