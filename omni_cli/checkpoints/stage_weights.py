"""Size in memory of the weights that each stage of a profile loads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omni_cli.checkpoints.derive import ITEMSIZES, weights_bytes
from omni_cli.checkpoints.files import (
    REPO_ID,
    check_checkpoint,
    entry_file,
    loaded_bytes,
    read_components,
    read_dtype,
    read_family,
    read_object,
)
from omni_cli.config.families import BUILTIN_PREFIX, Family, StageRole, published_needs
from omni_cli.config.schema import DiffusionStageConfig, EngineConfig, StageConfig
from omni_cli.core.errors import CheckpointError

Parts = Mapping[str, int]
"""Bytes in memory by part: the components of a pipeline, or all that the stage loads as one."""


Weights = Mapping[str, Parts]
"""By the stage's name."""

NUM_BRANCHES = "num_branches"
"""The key of a decoder's configuration that has the `num_branches` of the stage's role (see `StageRole`)."""

Decoders = Mapping[str, Mapping[str, Any]]
"""The configuration of each AR stage's language model, by the stage's name; those that were found."""


def find_weights(profile: EngineConfig, hub_cache: Path) -> tuple[Weights | None, Decoders, int | None]:
    """Return the weights and decoders of each stage, and the size of the download; weights and size None if unknown.

    Nothing is downloaded. Raises `CheckpointError`.
    """
    model = profile.model
    if model.startswith(BUILTIN_PREFIX):
        # Half a gigabyte at most, and built in a second.
        return {stage.name: {} for stage in profile.stages}, {}, 0
    folder = Path(model).expanduser()
    if folder.is_dir():
        check_checkpoint(folder)
        return stage_weights(profile, folder, is_complete=True), stage_decoders(profile, folder), 0
    if not REPO_ID.fullmatch(model):
        raise CheckpointError(f"no such model folder: `{model}`")
    snapshot, is_complete = find_snapshot(model, hub_cache)
    weights = stage_weights(profile, snapshot, is_complete=is_complete)
    decoders = stage_decoders(profile, snapshot) if snapshot is not None else {}
    if is_complete:
        return weights, decoders, 0
    needs = published_needs(model)
    if needs is not None:
        return weights, decoders, needs.download_bytes
    size = None if weights is None else sum(size for parts in weights.values() for size in parts.values())
    return weights, decoders, size


def find_snapshot(repo: str, hub_cache: Path) -> tuple[Path | None, bool]:
    """Return the newest snapshot of `repo` in the hub's cache, and whether it has weights and all of their files."""
    folder = hub_cache / f"models--{repo.replace('/', '--')}"
    snapshots = sorted(folder.glob("snapshots/*"), key=lambda path: path.stat().st_mtime)
    if not snapshots:
        return None, False
    is_complete = any(snapshots[-1].rglob("*.safetensors")) and not any(folder.glob("blobs/*.incomplete"))
    return snapshots[-1], is_complete


def stage_weights(config: EngineConfig, folder: Path | None, *, is_complete: bool) -> Weights | None:
    """Return the parts that each stage loads, by the stage's name, in the types that the profile gives them.

    From the files in `folder` if it `is_complete`; else from what the model family states of the repository, or from
    the index or the sizes in a configuration. None if all of them are absent. Raises `CheckpointError` for files that
    cannot be read.
    """
    if folder is not None and is_complete:
        family = read_family(folder)
        weights = {stage.name: _in_files(config, stage, family, folder) for stage in config.stages}
        if all(weights.values()):
            return weights
    published = published_needs(config.model)
    if published is not None:
        return {stage.name: _sum_parameters(config, stage, published.parameters) for stage in config.stages}
    if folder is None or not (folder / "config.json").is_file() or len(config.stages) > 1:
        return None
    size = weights_bytes(folder) * ITEMSIZES[config.dtype] // ITEMSIZES[read_dtype(folder)]
    return {config.stages[0].name: {"": size}}


def stage_decoders(config: EngineConfig, folder: Path) -> Decoders:
    """Read the decoders' configurations from the checkpoint in `folder`; the branches of the stage are added."""
    if not any((folder / name).is_file() for name in ("config.json", "model_index.json")):
        return {}
    family = read_family(folder)
    decoders = {}
    for stage in config.stages:
        role = family.role(stage.name)
        component, _, keys = (role.decoder if role is not None else "").rpartition("/")
        file = folder / component / "config.json"
        if stage.kind != "ar" or not file.is_file():
            continue
        part: Any = read_object(file)
        for key in filter(None, keys.split(".")):
            part = part.get(key) if isinstance(part, dict) else None
        if isinstance(part, dict):
            inner = part.get("thinker_config", part).get("text_config")  # of a transcriber beside others
            num_branches = role.num_branches if role is not None else 0
            decoders[stage.name] = {**(inner if isinstance(inner, dict) else part), NUM_BRANCHES: num_branches}
    return decoders


def _in_files(config: EngineConfig, stage: StageConfig, family: Family, folder: Path) -> dict[str, int]:
    role = family.role(stage.name)
    wanted = _get_components(role)
    if not wanted and entry_file(folder) == "config.json":
        # Roles without `needed_weights` are assumed to load equal shares of the checkpoint.
        sharing = sum(not _get_components(family.role(other.name)) for other in config.stages)
        whole = loaded_bytes(folder, ITEMSIZES[config.dtype])
        return {} if whole is None else {"": whole // sharing}
    if not wanted:
        wanted = {name: () for name, part in read_components(folder).items() if part.folder == folder / name}
    sizes = {
        component: loaded_bytes(folder / component, _itemsize(config, stage, component), prefixes or ("",))
        for component, prefixes in wanted.items()
    }
    return {component: size for component, size in sizes.items() if size is not None}


def _get_components(role: StageRole | None) -> dict[str, tuple[str, ...]]:
    """Return the components that a role loads: "" is the checkpoint itself, with the prefixes of its weights."""
    wanted: dict[str, tuple[str, ...]] = {}
    for needed in role.needed_weights if role is not None else ():
        component, _, prefix = needed.rpartition("/")
        prefixes = () if component else (prefix.partition(".")[0] + ".",)
        wanted[component] = (*wanted.get(component, ()), *prefixes)
    return wanted


def _sum_parameters(config: EngineConfig, stage: StageConfig, parameters: Mapping[str, int]) -> dict[str, int]:
    others = {other.name for other in config.stages}
    names = [stage.name] if stage.name in parameters else [name for name in parameters if name not in others]
    return {name: parameters[name] * _itemsize(config, stage, name) for name in names}


def _itemsize(config: EngineConfig, stage: StageConfig, component: str) -> int:
    types = stage.torch_dtype if isinstance(stage, DiffusionStageConfig) else {}
    return ITEMSIZES[types.get(component, config.dtype)]
