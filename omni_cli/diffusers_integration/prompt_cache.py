"""Cache of prompt embeddings, for requests that differ only in their seed."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from omni_cli.diffusers_integration.requests import freeze


@dataclass(frozen=True)
class CachedPrompt:
    """Result of a call of `encode_prompt`; `versions` are its tensors' in-place counters at that time."""

    result: object
    versions: tuple[int, ...]
    nbytes: int


class PromptCache:
    """Replaces a pipeline's `encode_prompt` and caches its results.

    The pipeline still calls `self.encode_prompt(...)` and gets the tensors of the first call, so the image cannot
    change. The key consists of all arguments of the call (prompt, negative prompt, `max_sequence_length`, guidance on
    or off, ...); calls with tensors have none. An entry whose tensors a pipeline changed in place is dropped, and the
    least recently used ones are beyond `max_bytes` on the device.

    It is for offloaded text encoders: one of 15 GiB takes 15 s to an H200 and back, longer than a few steps.
    """

    def __init__(self, encode_prompt: Callable[..., object], max_bytes: int) -> None:
        self._encode_prompt = encode_prompt
        self._signature = inspect.signature(encode_prompt)
        self._max_bytes = max_bytes
        self._entries: OrderedDict[Hashable, CachedPrompt] = OrderedDict()
        self._nbytes = 0

    def __call__(self, *args: object, **kwargs: object) -> object:
        key = self._key(args, kwargs)
        if key is None:
            return self._encode_prompt(*args, **kwargs)
        entry = self._entries.get(key)
        if entry is not None and entry.versions == _versions(entry.result):
            self._entries.move_to_end(key)
            return entry.result
        self._drop(key)
        result = self._encode_prompt(*args, **kwargs)
        self._keep(key, result)
        return result

    def clear(self) -> None:
        """Drop the embeddings."""
        self._entries.clear()
        self._nbytes = 0

    def _key(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Hashable | None:
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        # torch's devices and dtypes are not plain values, but their names identify them.
        plain = {n: str(v) if type(v).__name__ in ("device", "dtype") else v for n, v in bound.arguments.items()}
        try:
            return freeze(plain)
        except TypeError:
            return None

    def _keep(self, key: Hashable, result: Any) -> None:
        nbytes = sum(tensor.nbytes for tensor in _tensors(result))
        if nbytes > self._max_bytes:
            return
        self._entries[key] = CachedPrompt(result, _versions(result), nbytes)
        self._nbytes += nbytes
        while self._nbytes > self._max_bytes:
            self._drop(next(iter(self._entries)))

    def _drop(self, key: Hashable) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._nbytes -= entry.nbytes


def _tensors(result: Any) -> list[Any]:
    """The tensors in a result of `encode_prompt`: one, or nested tuples and lists of them and None."""
    if isinstance(result, tuple | list):
        return [tensor for item in result for tensor in _tensors(item)]
    if isinstance(result, dict):
        return [tensor for item in result.values() for tensor in _tensors(item)]
    return [] if result is None or not hasattr(result, "_version") else [result]


def _versions(result: Any) -> tuple[int, ...]:
    return tuple(tensor._version for tensor in _tensors(result))
