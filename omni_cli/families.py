"""Model families: what omni knows about an architecture, as data, and where the code that only it needs is.

A family registers under the entry point group `omni_cli.models`; ours do, too. References are `package.module:name`
and are imported where they are needed, so that listing the families imports none of them.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any, Literal

GROUP = "omni_cli.models"

Reference = str
"""`package.module:name`."""


@dataclass(frozen=True)
class StageRole:
    """One stage of a family's chain.

    `stage` is the class that runs it: called with a `StageSpec` and `emit`, it returns a loaded `Stage`. `input` names
    the role whose output it takes, None for the first. `settings` is a model of the stage's own profile keys, derived
    from `config.schema.ARStageConfig` or `DiffusionStageConfig`; None where it has no others. Of each group in
    `needed_files`, a checkpoint must have at least one file.
    """

    name: str
    kind: Literal["ar", "diffusion"]
    backend: Literal["vllm", "diffusers"]
    stage: Reference
    input: str | None = None
    settings: Reference | None = None
    needed_files: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Family:
    """One architecture under all the names that checkpoints give it; the first is the one that the engine uses.

    `vllm_models` maps an architecture's name to the model class that vLLM lacks. `builtins` maps the name of a built-in
    checkpoint to a function of an output folder and a seed. `profile` is a function from a checkpoint folder to the
    data of a profile for it.
    """

    name: str
    title: str
    architectures: tuple[str, ...]
    roles: tuple[StageRole, ...]
    vllm_models: Mapping[str, Reference] = field(default_factory=dict)
    builtins: Mapping[str, Reference] = field(default_factory=dict)
    profile: Reference | None = None

    def role(self, name: str) -> StageRole | None:
        """The role of that name; None if the chain has none."""
        return next((role for role in self.roles if role.name == name), None)


@functools.cache
def families() -> Mapping[str, Family]:
    """The installed families by name."""
    found = {}
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        family: Family = point.load()
        found[family.name] = family
    return MappingProxyType(found)


def family_of(architecture: str) -> Family | None:
    """The family of a checkpoint's architecture; None for one that no family names."""
    return next((family for family in families().values() if architecture in family.architectures), None)


def load(reference: Reference) -> Any:
    """Import what a reference names."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)
