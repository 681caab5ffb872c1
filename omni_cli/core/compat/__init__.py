"""Workarounds for one version or build of a dependency, each in its own module with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def replace_attributes(owner: object, **values: object) -> Iterator[None]:
    """Give attributes of a module or class these values within the context."""
    originals = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(owner, name, original)
