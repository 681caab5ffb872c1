"""Profiles: the bundled ones with damage to their structure, their text or their bytes, and `--set` options."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml

from fuzz.documents import bombs, damage, json_text, mutate, yaml_text
from omni_cli.config.bundled import bundled_profiles
from omni_cli.config.diagnostics import InvalidProfileError
from omni_cli.config.loader import load_profile
from omni_cli.config.schema import profile_data
from omni_cli.config.yaml_tree import to_yaml
from omni_cli.core.errors import ProfileError

# Without their comments, which take most of the time and none of the damage that matters.
ORIGINALS = [yaml_text(yaml.safe_load(path.read_bytes())).encode() for path in bundled_profiles().values()] + [
    path.read_bytes() for path in bundled_profiles().values()
][:1]
SMALL = b"""version: 1
name: small
model: builtin:tiny-omni
dtype: float32
stages:
  thinker: {kind: ar, max_model_len: 64, sampling: {temperature: 0.5, stop: [x], max_tokens: 8}, max_payload_items: 9}
  token2wav: {kind: diffusion, backend: vllm, input: thinker, num_inference_steps: 4, sway_coefficient: -1.0}
  image: {kind: diffusion, input: token2wav, height: 64, width: 64, call: {true_cfg_scale: 4.0}}
"""
BOMBS = bombs()
PARTS = ["thinker", "talker", "token2wav", "stages", "sampling", "max_tokens", "kind", "input", "model", "seed", "call",
         "max_num_seqs", "stop", "devices", "x", "", "dtype"]  # fmt: skip
VALUES = ["null", "ar", "[a", "{a: b}", "[[1]]", "'", "&a 1", "*a", "1e999", "-1", "", "=", "0", "9" * 500, "[" * 400]
MAX_SECONDS = 10.0


class Case(NamedTuple):
    content: bytes
    overrides: tuple[str, ...]


@cache
def scratch() -> Path:
    """The file that cases are written to."""
    folder = tempfile.TemporaryDirectory(prefix="omni-fuzz-")
    vars(scratch)["folder"] = folder  # removed with the process
    return Path(folder.name) / "case"


def cases(rng: random.Random) -> Iterator[Case]:
    while True:
        content = _content(rng)
        overrides: tuple[str, ...] = ()
        if rng.random() < 0.2:
            names = [".".join(rng.choices(PARTS, k=rng.choice((1, 2, 2, 3, 7)))) for _ in range(rng.randint(1, 3))]
            overrides = tuple(f"{name}={rng.choice(VALUES)}" for name in names)
        yield Case(content, overrides)


def _content(rng: random.Random) -> bytes:
    kind = rng.random()
    if kind < 0.005:
        bomb = rng.choice(BOMBS)
        return bomb if rng.random() < 0.5 else damage(rng, bomb)
    original = SMALL if rng.random() < 0.7 else rng.choice(ORIGINALS)
    if kind < 0.4:
        return damage(rng, original)
    document = mutate(rng, yaml.safe_load(original))
    text = (yaml_text if rng.random() < 0.7 else json_text)(document)
    content = text.encode(errors="replace")
    return damage(rng, content) if kind > 0.9 else content


def check(case: Case) -> str:
    """Raises for everything but a configuration, which can be written and read again, or clean diagnostics."""
    path = scratch()
    path.write_bytes(case.content)
    try:
        config = load_profile(str(path), case.overrides)
    except InvalidProfileError as error:
        assert error.diagnostics and len(error.message) < 400_000
        assert "\x1b" not in error.message and "\x00" not in error.message
        for item in error.diagnostics:
            assert item.message and item.location.line < max(1, len(item.location.source.lines))
        return "rejected"
    except ProfileError as error:
        assert error.message
        return "rejected"
    path.write_text(to_yaml(profile_data(config)), encoding="utf-8")
    assert load_profile(str(path)) == config, "what is shown is not what was read"
    return "accepted"
