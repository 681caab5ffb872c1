"""Items in order, in batches of limited size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def split_by_size(items: Iterable[T], get_size: Callable[[T], int], max_size: int) -> Iterator[list[T]]:
    """Yield as many items at a time as have `max_size` together, and at least one."""
    batch: list[T] = []
    size = 0
    for item in items:
        if batch and size + get_size(item) > max_size:
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += get_size(item)
    if batch:
        yield batch
