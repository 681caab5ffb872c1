"""Size in memory of the weights that each stage of a profile loads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from omni_cli.checkpoints.derive import ITEMSIZES, weights_bytes
from omni_cli.checkpoints.files import entry_file, loaded_bytes, read_components, read_dtype, read_family
from omni_cli.config.schema import DiffusionStageConfig, EngineConfig, StageConfig
from omni_cli.families import Family, StageRole, published_needs

Parts = Mapping[str, int]
"""Bytes in memory by part: the components of a pipeline, or all that the stage loads as one."""


def stage_weights(config: EngineConfig, folder: Path | None, *, is_complete: bool) -> Mapping[str, Parts] | None:
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
        return {stage.name: _stated(config, stage, published.parameters) for stage in config.stages}
    if folder is None or not (folder / "config.json").is_file() or len(config.stages) > 1:
        return None
    size = weights_bytes(folder) * ITEMSIZES[config.dtype] // ITEMSIZES[read_dtype(folder)]
    return {config.stages[0].name: {"": size}}


def _in_files(config: EngineConfig, stage: StageConfig, family: Family, folder: Path) -> dict[str, int]:
    role = family.role(stage.name)
    wanted = _wanted(role)
    if not wanted and entry_file(folder) == "config.json":
        # Stages that do not say what they load are taken to share the checkpoint evenly.
        sharing = sum(not _wanted(family.role(other.name)) for other in config.stages)
        whole = loaded_bytes(folder, ITEMSIZES[config.dtype])
        return {} if whole is None else {"": whole // sharing}
    if not wanted:
        wanted = {name: () for name, part in read_components(folder).items() if part.folder == folder / name}
    sizes = {
        component: loaded_bytes(folder / component, _itemsize(config, stage, component), prefixes or ("",))
        for component, prefixes in wanted.items()
    }
    return {component: size for component, size in sizes.items() if size is not None}


def _wanted(role: StageRole | None) -> dict[str, tuple[str, ...]]:
    """Return the components that a role loads: "" is the checkpoint itself, with the prefixes of its weights."""
    wanted: dict[str, tuple[str, ...]] = {}
    for needed in role.needed_weights if role is not None else ():
        component, _, prefix = needed.rpartition("/")
        prefixes = () if component else (prefix.partition(".")[0] + ".",)
        wanted[component] = (*wanted.get(component, ()), *prefixes)
    return wanted


def _stated(config: EngineConfig, stage: StageConfig, parameters: Mapping[str, int]) -> dict[str, int]:
    others = {other.name for other in config.stages}
    names = [stage.name] if stage.name in parameters else [name for name in parameters if name not in others]
    return {name: parameters[name] * _itemsize(config, stage, name) for name in names}


def _itemsize(config: EngineConfig, stage: StageConfig, component: str) -> int:
    types = stage.torch_dtype if isinstance(stage, DiffusionStageConfig) else {}
    return ITEMSIZES[types.get(component, config.dtype)]
