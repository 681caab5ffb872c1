"""Gate files with damage to their structure, their text or their bytes."""

from __future__ import annotations

import random
from collections.abc import Iterator

import yaml

from fuzz.documents import bombs, damage, json_text, mutate, yaml_text
from fuzz.profiles import scratch
from omni_cli.config.gate_limits import load_gate_file
from omni_cli.core.errors import OmniError

ORIGINALS = [
    b"version: 1\ndescription: limits\nmax_regression: 5%\nmax_memory_regression: 2%\noutputs: identical\n"
    b"metrics:\n  e2e_s: 5%\n  ttft_s: 0.1\n  peak_allocated_bytes: 1%\n  rtf:\n",
    b"version: 1\noutputs: {max_abs_diff: 1e-4}\nmetrics: {e2e_s: 3%, itl_s.thinker: 10%}\n",
]
BOMBS = bombs()


def cases(rng: random.Random) -> Iterator[bytes]:
    while True:
        kind = rng.random()
        original = rng.choice(ORIGINALS)
        if kind < 0.005:
            yield rng.choice(BOMBS)
        elif kind < 0.4:
            yield damage(rng, original)
        else:
            text = (yaml_text if rng.random() < 0.7 else json_text)(mutate(rng, yaml.safe_load(original)))
            yield text.encode(errors="replace")


def check(case: bytes) -> str:
    """Raises for everything but limits or a clean diagnostic."""
    path = scratch()
    path.write_bytes(case)
    try:
        limits = load_gate_file(path)
    except OmniError as error:
        assert error.message and "\x1b" not in error.message
        return "rejected"
    assert all(0 <= limit <= 10 for limit in limits.metrics.values())
    return "accepted"
