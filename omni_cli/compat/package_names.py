"""Which distribution each importable package comes from, found quickly."""

from __future__ import annotations

import contextlib
import inspect
from collections import defaultdict
from collections.abc import Iterable, Iterator
from importlib import metadata
from unittest.mock import patch


@contextlib.contextmanager
def quick_package_names() -> Iterator[None]:
    """Within this context `importlib.metadata.packages_distributions` does not look for each installed file.

    transformers and diffusers call it while they are imported. Since Python 3.12 it looks for every file that a RECORD
    lists, tens of thousands next to torch.
    """
    with patch.object(metadata, "packages_distributions", packages_distributions):
        yield


def packages_distributions() -> dict[str, list[str]]:
    """Return the names of the distributions of each importable top-level name."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for distribution in metadata.distributions():
        declared = (distribution.read_text("top_level.txt") or "").split()
        for name in declared or _inferred(distribution):
            found[name].append(distribution.metadata["Name"])
    return dict(found)


def _inferred(distribution: metadata.Distribution) -> Iterable[str]:
    record = distribution.read_text("RECORD")
    if record is None:  # not from a wheel
        paths = [str(path) for path in distribution.files or ()]
    else:
        paths = [line.lstrip('"').partition(",")[0] for line in record.splitlines()]
    names = {_top_level(*path.partition("/")) for path in paths}
    return sorted(name for name in names if name and "." not in name)


def _top_level(first: str, slash: str, _: str) -> str:
    """Return the name of a folder or of a module; other files keep their names, which have a dot."""
    return first if slash else inspect.getmodulename(first) or first
