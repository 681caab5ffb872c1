"""Costs in known places, for tests that want to see them found: runs first in each Python of a command.

`PLANTED_COSTS` names a range and what happens in it, several of them by semicolons: `wait=denoising step 3` keeps the
processor busy for 60 ms, `hold=vae decode` holds a tensor of 200 MiB until the range ends, `copy=text encode` copies
one of 32 MiB. Each happens whenever the range is entered, whether anybody records or not.
"""

import os
import time
from typing import Any

from omni_cli.backends.execution import ranges

WAIT_S = 0.06
HELD_BYTES = 200 * 2**20
COPIED_BYTES = 32 * 2**20

_places = [entry.split("=") for entry in os.environ.get("PLANTED_COSTS", "").split(";") if entry]
_mark = ranges.mark


class _WithCost:
    def __init__(self, mark, costs):
        self._mark, self._costs, self._held = mark, costs, None

    def __enter__(self):
        self._mark.__enter__()
        if "wait" in self._costs:
            until = time.perf_counter() + WAIT_S
            while time.perf_counter() < until:
                pass
        if "hold" in self._costs:
            self._held = _bytes(HELD_BYTES)
        if "copy" in self._costs:
            _source().clone()

    def __exit__(self, *error):
        self._held = None
        self._mark.__exit__(*error)


def _bytes(count):
    import torch

    return torch.ones(count, dtype=torch.uint8)


_sources: list[Any] = []


def _source():
    if not _sources:
        _sources.append(_bytes(COPIED_BYTES))
    return _sources[0]


def _planted(name, number=None):
    called = name if number is None else f"{name} {number}"
    costs = [cost for cost, place in _places if place == called]
    return _WithCost(_mark(name, number), costs) if costs else _mark(name, number)


# Before anybody imports it by name.
ranges.mark = _planted
