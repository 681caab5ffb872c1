"""Interface between the diffusion runner and a model: the call, the accepted results, and their copy to the host."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn

from omni_cli.execution.copies import OutputCopy

logger = logging.getLogger(__name__)

ENTRY_POINTS = ("sample", "forward", "diffuse")


@dataclass(frozen=True)
class DiffusionInput:
    """One request of a batch: `token_ids` (num_tokens,) on the device; `information` by name, with host tensors."""

    request_id: str
    token_ids: torch.Tensor
    information: Mapping[str, Any]


def diffusion_entry(model: nn.Module) -> Callable[..., object]:
    """Return the first of `ENTRY_POINTS` that `model` has: a method that takes a list of `DiffusionInput`."""
    for name in ENTRY_POINTS:
        method = getattr(type(model), name, None)
        if method is not None and method is not nn.Module.forward:
            entry: Callable[..., object] = getattr(model, name)
            return entry
    raise TypeError(f"{type(model).__name__} has none of {', '.join(ENTRY_POINTS)}; a diffusion model needs one")


@dataclass(frozen=True)
class NoOutput:
    """The reason why a request has no tensor: it fails, while the rest of its batch continues."""

    reason: str


@dataclass(frozen=True)
class Unfinished:
    """Returned in place of a tensor for a request that needs more steps; see `StepwiseScheduler`."""


UNFINISHED = Unfinished()
Output: TypeAlias = torch.Tensor | NoOutput | Unfinished


def one_tensor_per_request(result: object, request_ids: list[str]) -> dict[str, Output]:
    """Split a model's result into one tensor per request, or the reason why there is none.

    Accepts a tensor whose first dimension is the batch, a list in batch order, or a dict by request id. If the number
    is wrong, the tensors cannot be assigned, and no request gets one.
    """
    if isinstance(result, Mapping):
        unknown = [str(name) for name in result if name not in request_ids]
        if unknown:
            logger.warning("the model answered requests that are not in the batch: %s", ", ".join(unknown))
        nothing = NoOutput(
            "the model returned nothing for it"
            + (f", but something for {', '.join(unknown)}, not in the batch" if unknown else "")
        )
        return {request_id: _tensor(result.get(request_id, nothing)) for request_id in request_ids}
    if not isinstance(result, (torch.Tensor, list, tuple)):
        none = NoOutput(f"a diffusion model returns a tensor, a list or a dict, not {type(result).__name__}")
        return dict.fromkeys(request_ids, none)
    if isinstance(result, torch.Tensor) and not result.dim():
        result = ()  # a scalar has no batch dimension
    if len(result) != len(request_ids):
        none = NoOutput(f"the model returned {len(result)} tensors for {len(request_ids)} requests")
        return dict.fromkeys(request_ids, none)
    return {request_id: _tensor(output) for request_id, output in zip(request_ids, result, strict=True)}


def _tensor(output: object) -> Output:
    if isinstance(output, (torch.Tensor, NoOutput, Unfinished)):
        return output
    return NoOutput(f"the model returned {type(output).__name__}, not a tensor")


def start_together(tensors: Mapping[str, torch.Tensor], copy: OutputCopy) -> Callable[[], dict[str, torch.Tensor]]:
    """Start copying `tensors` to the host; the returned function waits and returns them by name.

    One transfer per dtype.
    """
    if len({tensor.dtype for tensor in tensors.values()}) != 1:
        by_dtype: dict[torch.dtype, dict[str, torch.Tensor]] = {}
        for name, tensor in tensors.items():
            by_dtype.setdefault(tensor.dtype, {})[name] = tensor
        parts = [start_together(group, copy) for group in by_dtype.values()]
        return lambda: {name: tensor for part in parts for name, tensor in part().items()}
    if len(tensors) == 1:
        ((name, tensor),) = tensors.items()
        only = copy.start(tensor)
        return lambda: {name: only.get()}
    shapes = [tensor.shape for tensor in tensors.values()]
    together = copy.start(torch.cat([tensor.reshape(-1) for tensor in tensors.values()]))

    def arrived() -> dict[str, torch.Tensor]:
        flat = together.get().split([shape.numel() for shape in shapes])
        return {name: part.view(shape) for name, part, shape in zip(tensors, flat, shapes, strict=True)}

    return arrived
