"""A valid profile to modify, and the resulting mistakes as a user sees them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omni_cli.config.loader import check_profile
from omni_cli.config.schema import EngineConfig, StageConfig

GOOD = """\
version: 1
name: good
model: builtin:tiny-omni
dtype: float32
stages:
  thinker:
    kind: ar
    sampling: {temperature: 0.0}
  vocoder:
    kind: diffusion
    backend: vllm
    input: thinker
"""


def make_config(name: str, model: str, *stages: StageConfig, dtype: str = "float32", **values: Any) -> EngineConfig:
    """A configuration as a profile's, of stages made by `named`."""
    top_level = {"version": 1, "name": name, "model": model, "dtype": dtype, **values}
    return EngineConfig.model_validate({**top_level, "stages": {stage.name: stage for stage in stages}})


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "p.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def mistakes(folder: Path, text: str | bytes) -> list[str]:
    """`LINE:COLUMN 'underlined': message (hint)` for each mistake, read from what the user sees."""
    found = []
    for item in check_profile(write(folder, text)):
        lines = item.render().split("\n")
        head = lines[0].partition("p.yaml:")[2]
        place, _, message = head.partition(": ")
        token = ""
        if len(lines) > 3 and set(lines[3].strip(" |")) == {"^"}:
            start, end = lines[3].index("^"), lines[3].rindex("^") + 1
            token = f" '{lines[2][start:end]}'"
        hint = f" ({lines[-1].removeprefix('hint: ')})" if lines[-1].startswith("hint: ") else ""
        found.append(f"{place}{token}: {message}{hint}")
    return found
