"""How the diffusion runner calls a model, what it accepts back and how that gets to the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from omni_cli.execution.copies import OutputCopy

ENTRY_POINTS = ("sample", "forward", "diffuse")


@dataclass(frozen=True)
class DiffusionInput:
    """One request of a batch: `token_ids` (num_tokens,) on the device, `information` tensors and lists by name."""

    request_id: str
    token_ids: torch.Tensor
    information: Mapping[str, Any]


def diffusion_entry(model: nn.Module) -> Callable[..., Any]:
    """The method that runs `model` over a list of `DiffusionInput`: the first that it defines of `ENTRY_POINTS`."""
    for name in ENTRY_POINTS:
        method = getattr(type(model), name, None)
        if method is not None and method is not nn.Module.forward:
            entry: Callable[..., Any] = getattr(model, name)
            return entry
    raise TypeError(f"{type(model).__name__} has none of {', '.join(ENTRY_POINTS)}; a diffusion model needs one")


def one_tensor_per_request(result: Any, request_ids: list[str]) -> dict[str, torch.Tensor]:
    """What a model returned, as one tensor a request.

    Accepts a tensor whose first dimension is the batch, a list in the order of the batch, or a dict by request id.
    Raises `ValueError` that names the request or the counts when something is missing, extra or no tensor.
    """
    if isinstance(result, Mapping):
        missing = [request_id for request_id in request_ids if request_id not in result]
        if missing or len(result) != len(request_ids):
            raise ValueError(
                f"the model answered {len(result)} of {len(request_ids)} requests; missing: {', '.join(missing) or '-'}"
            )
        pairs = {request_id: result[request_id] for request_id in request_ids}
    elif isinstance(result, (torch.Tensor, list, tuple)):
        if len(result) != len(request_ids):
            raise ValueError(f"the model returned {len(result)} tensors for {len(request_ids)} requests")
        pairs = dict(zip(request_ids, result, strict=True))
    else:
        raise ValueError(f"a diffusion model returns a tensor, a list or a dict, not {type(result).__name__}")
    for request_id, tensor in pairs.items():
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"request {request_id}: the model returned {type(tensor).__name__}, not a tensor")
    return pairs


def start_together(tensors: Mapping[str, torch.Tensor], copy: OutputCopy) -> Callable[[], dict[str, torch.Tensor]]:
    """Start one transfer to the host for all of `tensors`; what is returned waits for it and gives them by name.

    Raises `ValueError` where their types differ.
    """
    dtypes = {str(tensor.dtype) for tensor in tensors.values()}
    if len(dtypes) > 1:
        raise ValueError(f"the model returned tensors of different types: {', '.join(sorted(dtypes))}")
    if len(tensors) == 1:
        ((name, tensor),) = tensors.items()
        only = copy.start(tensor)
        return lambda: {name: only.get()}
    shapes = [tensor.shape for tensor in tensors.values()]
    together = copy.start(torch.cat([tensor.reshape(-1) for tensor in tensors.values()]))

    def arrived() -> dict[str, torch.Tensor]:
        parts = together.get().split([shape.numel() for shape in shapes])
        return {name: part.view(shape) for name, part, shape in zip(tensors, parts, shapes, strict=True)}

    return arrived
