"""The arguments of a call as a CUDA graph sees them: a key, tensors to copy, and constants."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator

import torch
from torch.utils import _pytree

_CONSTANT_TYPES = (type(None), bool, int, str, torch.dtype, torch.device)


class UnsupportedError(TypeError):
    """A value that can neither be copied into or out of a graph nor be part of its key."""


def graph_key(value: object, tensors: list[torch.Tensor]) -> Hashable:
    """Return the key that two calls must share to share a graph; append the tensors in `value` to `tensors`.

    Tensors count by shape, strides, dtype and device, everything else by its value. Raises `UnsupportedError`, without
    the argument's name (see `argument_leaves`), for anything but tensors, numbers, strings, None, dtypes, devices,
    lists, tuples and dicts.
    """
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return (value.shape, value.stride(), value.dtype, value.device)
    if isinstance(value, dict):
        return (dict, tuple((name, graph_key(item, tensors)) for name, item in value.items()))
    if isinstance(value, list | tuple):
        return (type(value), tuple(graph_key(item, tensors) for item in value))
    if isinstance(value, float):
        # Its text distinguishes 0.0 from -0.0, and NaN equals itself.
        return (float, repr(value))
    if isinstance(value, _CONSTANT_TYPES):
        return (type(value), value)
    raise UnsupportedError(f"a {type(value).__name__}, which a CUDA graph can neither copy nor compare")


def argument_leaves(
    parameters: tuple[str, ...], args: tuple[object, ...], kwargs: dict[str, object]
) -> Iterator[tuple[str, object]]:
    """Yield every leaf of a call's arguments with its name, such as `img_shapes[0][1]`; `parameters` are the names of
    positional ones."""
    names = (*parameters, *(f"argument {index + 1}" for index in range(len(parameters), len(args))))
    for name, value in (*zip(names, args, strict=False), *kwargs.items()):
        for path, leaf in _pytree.tree_leaves_with_path(value):
            yield name + _pytree.keystr(path), leaf


def describe_leaf(leaf: object) -> str:
    """Describe a leaf's part of the key for people."""
    if isinstance(leaf, torch.Tensor):
        return f"{str(leaf.dtype).removeprefix('torch.')} {tuple(leaf.shape)} on {leaf.device}"
    return repr(leaf)


def changed_arguments(before: dict[str, str], now: dict[str, str], limit: int = 2) -> str:
    """Describe the leaves that differ between two calls: "`timestep` (0.5, then 0.4)"."""
    names = [name for name in now if before.get(name) != now[name]] + [name for name in before if name not in now]
    shown = [f"`{name}` ({before.get(name, 'absent')}, then {now.get(name, 'absent')})" for name in names[:limit]]
    return ", ".join(shown) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], value: object) -> object:
    """Apply `function` to each tensor of a model's output, including output classes of diffusers and transformers."""
    return _pytree.tree_map_only(torch.Tensor, function, value)


def check_outputs(value: object) -> None:
    """Raise `UnsupportedError` if `map_tensors` would miss tensors in a model's output."""
    for leaf in _pytree.tree_leaves(value):
        if not isinstance(leaf, (torch.Tensor, float, *_CONSTANT_TYPES)):
            raise UnsupportedError(f"returns a {type(leaf).__name__}, whose tensors a CUDA graph cannot find")
