"""Condition rows that reach a request after it has begun: they travel to the workers with the step that needs them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch
    from vllm.v1.core.sched.output import SchedulerOutput


class Arrived(NamedTuple):
    """Rows (num_rows, embedding_size) on the host that follow those that a request has; `is_last`: no more come."""

    rows: torch.Tensor
    is_last: bool


def attach_arrived(scheduler_output: SchedulerOutput, arrived: Mapping[str, Arrived]) -> None:
    """Send rows along, by the engine's request id. vLLM hands its scheduler's output to every rank as it is."""
    scheduler_output.omni_arrived = arrived


def arrived_with(scheduler_output: SchedulerOutput) -> Mapping[str, Arrived]:
    """What `attach_arrived` has attached; empty where nothing was."""
    return getattr(scheduler_output, "omni_arrived", {})
