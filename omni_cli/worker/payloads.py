"""Tensors and small facts that travel with a request, as bytes, checked before anything is allocated.

Two msgspec structs cross process boundaries: between stages (what one stage hands to the next) and inside a vLLM
request (`SamplingParams.extra_args`, `PoolingParams.extra_kwargs`), where vLLM carries bytes untouched. No pickle.

Decoding trusts nothing: dtype names come from a fixed table, every dimension is checked, and the byte count must
be exactly what shape and dtype say. A decoded tensor is a read-only view of the received bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    import torch

_ITEMSIZE = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "uint8": 1,
    "bool": 1,
}


class PayloadError(ValueError):
    """A payload that must not be decoded; the message names the entry and what is wrong with it."""


@dataclass(frozen=True)
class PayloadLimits:
    """Upper bounds on one decoded payload."""

    max_tensor_bytes: int = 1 << 30
    max_entries: int = 64
    max_dims: int = 8
    max_list_items: int = 1 << 20


DEFAULT_LIMITS = PayloadLimits()


class PromptEmbedsPayload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One embedding row a prompt position: `shape` is (num_prompt_tokens, embedding_size), row-major."""

    data: bytes
    shape: tuple[int, ...]
    dtype: str


class AdditionalInformationEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Either a tensor (`data`, `shape`, `dtype`) or a list of numbers or strings (`items`)."""

    data: bytes | None = None
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    items: list[int | float | str] | None = None


class AdditionalInformationPayload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Named tensors and lists that belong to one request."""

    entries: dict[str, AdditionalInformationEntry]


def encode_prompt_embeds(embeds: torch.Tensor) -> bytes:
    """`embeds` (num_prompt_tokens, embedding_size), any device -> msgpack bytes of a `PromptEmbedsPayload`."""
    data, shape, dtype = _tensor_parts(embeds)
    return msgspec.msgpack.encode(PromptEmbedsPayload(data, shape, dtype))


def decode_prompt_embeds(raw: bytes, limits: PayloadLimits = DEFAULT_LIMITS) -> torch.Tensor:
    """The inverse; raises `PayloadError` unless the payload is a two-dimensional, non-empty float tensor."""
    payload = _decode(raw, PromptEmbedsPayload)
    if len(payload.shape) != 2 or 0 in payload.shape:
        raise PayloadError(f"prompt_embeds: shape must be (num_tokens, size), both at least 1; got {payload.shape}")
    if "float" not in payload.dtype:
        raise PayloadError(f"prompt_embeds: dtype must be a float type, got {payload.dtype!r}")
    return _tensor("prompt_embeds", payload.data, payload.shape, payload.dtype, limits)


def encode_additional_information(values: Mapping[str, torch.Tensor | Sequence[int | float | str]]) -> bytes:
    """Named tensors (any device) and sequences -> msgpack bytes of an `AdditionalInformationPayload`."""
    return msgspec.msgpack.encode(AdditionalInformationPayload({k: _entry(v) for k, v in values.items()}))


def decode_additional_information(raw: bytes, limits: PayloadLimits = DEFAULT_LIMITS) -> dict[str, Any]:
    """The inverse: tensors (read-only views) and lists by name; raises `PayloadError`."""
    payload = _decode(raw, AdditionalInformationPayload)
    if len(payload.entries) > limits.max_entries:
        raise PayloadError(f"{len(payload.entries)} entries, at most {limits.max_entries} are allowed")
    return {name: _value(name, entry, limits) for name, entry in payload.entries.items()}


def _decode(raw: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.msgpack.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PayloadError(f"not a {kind.__name__}: {error}") from error


def _tensor_parts(tensor: torch.Tensor) -> tuple[bytes, tuple[int, ...], str]:
    import torch

    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in _ITEMSIZE:
        raise PayloadError(f"dtype {dtype} cannot be sent; one of {', '.join(_ITEMSIZE)} can")
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes(), tuple(tensor.shape), dtype


def _entry(value: Any) -> AdditionalInformationEntry:
    import torch

    if isinstance(value, torch.Tensor):
        data, shape, dtype = _tensor_parts(value)
        return AdditionalInformationEntry(data=data, shape=shape, dtype=dtype)
    return AdditionalInformationEntry(items=list(value))


def _value(name: str, entry: AdditionalInformationEntry, limits: PayloadLimits) -> Any:
    tensor_fields = (entry.data, entry.shape, entry.dtype)
    if entry.items is not None:
        if any(field is not None for field in tensor_fields):
            raise PayloadError(f"{name}: both a list and a tensor")
        if len(entry.items) > limits.max_list_items:
            raise PayloadError(f"{name}: {len(entry.items)} items, at most {limits.max_list_items} are allowed")
        return entry.items
    if entry.data is None or entry.shape is None or entry.dtype is None:
        raise PayloadError(f"{name}: neither a list nor a whole tensor")
    return _tensor(name, entry.data, entry.shape, entry.dtype, limits)


def _tensor(name: str, data: bytes, shape: tuple[int, ...], dtype: str, limits: PayloadLimits) -> torch.Tensor:
    if dtype not in _ITEMSIZE:
        raise PayloadError(f"{name}: unknown dtype {dtype!r}; one of {', '.join(_ITEMSIZE)}")
    if len(shape) > limits.max_dims:
        raise PayloadError(f"{name}: {len(shape)} dimensions, at most {limits.max_dims} are allowed")
    if any(size < 0 for size in shape):
        raise PayloadError(f"{name}: negative size in shape {shape}")
    # Python integers do not overflow, so a lying shape cannot wrap around to a small byte count.
    expected = math.prod(shape) * _ITEMSIZE[dtype]
    if expected > limits.max_tensor_bytes:
        raise PayloadError(f"{name}: {expected} bytes, at most {limits.max_tensor_bytes} are allowed")
    if expected != len(data):
        raise PayloadError(f"{name}: shape {shape} of {dtype} is {expected} bytes, got {len(data)}")
    import torch

    if not expected:
        return torch.empty(shape, dtype=getattr(torch, dtype))
    if dtype == "bool" and not set(data) <= {0, 1}:
        raise PayloadError(f"{name}: bytes other than 0 and 1 in a bool tensor")
    return torch.frombuffer(bytearray(data), dtype=getattr(torch, dtype)).reshape(shape)
