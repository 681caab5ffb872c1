"""Input embeddings and codes that arrive while a request runs, sent to the workers with a step's scheduler output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch
    from vllm.v1.core.sched.output import SchedulerOutput


class Arrived(NamedTuple):
    """Rows (num_rows, embedding_size) on the host, appended to the request's earlier ones; none follow if `is_last`."""

    rows: torch.Tensor
    is_last: bool


def attach_arrived(scheduler_output: SchedulerOutput, arrived: Mapping[str, Arrived]) -> None:
    """Attach rows by the engine's request id. vLLM sends its scheduler's output to every rank unchanged."""
    scheduler_output.omni_arrived = arrived


def get_arrived(scheduler_output: SchedulerOutput) -> Mapping[str, Arrived]:
    """Return the rows that `attach_arrived` attached; empty if there are none."""
    return getattr(scheduler_output, "omni_arrived", {})


def attach_codes(scheduler_output: SchedulerOutput, codes: Mapping[str, torch.Tensor]) -> None:
    """Attach the latest codes (1, num_codebooks) by the engine's request id, for pipeline ranks that predict none."""
    scheduler_output.omni_codes = codes


def get_codes(scheduler_output: SchedulerOutput) -> Mapping[str, torch.Tensor]:
    """Return the codes that `attach_codes` attached; empty if there are none."""
    return getattr(scheduler_output, "omni_codes", {})
