"""Check that a profile's stages can load a checkpoint, reading only its small files, and read its weights ahead."""

from __future__ import annotations

import contextlib
import functools
import os
from pathlib import Path

from omni_cli.checkpoints.adapters import check_adapters
from omni_cli.checkpoints.architectures import check_known
from omni_cli.checkpoints.files import describes_encoder, read_family, read_model_kind, read_object, weight_shapes
from omni_cli.checkpoints.hub import download, needed_files
from omni_cli.checkpoints.resolve import find_folder
from omni_cli.config.families import BUILTIN_PREFIX, Family, families
from omni_cli.config.schema import EngineConfig, StageConfig
from omni_cli.core.errors import CheckpointError
from omni_cli.core.machine import read_memory
from omni_cli.engine.devices import check_devices

_INCOMPLETE = "the folder is incomplete: download or copy it again"
_READ_AHEAD_BYTES = 2**20  # the system reads only the beginning of what is larger
_HINT = "choose the profile of this checkpoint (`--profile`), or another checkpoint (`--model`)"


def check_start(config: EngineConfig) -> Path | None:
    """Check devices and the checkpoint before a process is started.

    Return the checkpoint's folder; None for one that has to be built or downloaded. The configuration of a repository
    is downloaded here, so that a repository that is missing is an error at once.
    """
    check_devices(config)
    folder = find_folder(config.model)
    if folder is not None:
        check_fit(config, folder)
    elif not config.model.startswith(BUILTIN_PREFIX):
        check_known(download(config.model, settings_only=True), trusts_code=config.trust_remote_code)
    return folder


def check_fit(config: EngineConfig, folder: Path) -> None:
    """Raise `CheckpointError` if a stage cannot be part of the checkpoint in `folder`."""
    check_known(folder, trusts_code=config.trust_remote_code)
    family = read_family(folder)
    names_of = functools.cache(weight_shapes)
    for stage in config.stages:
        role = family.role(stage.name)
        if role is None or not role.fits(stage):
            raise _misfit(stage, family, folder)
        if role.enabled_key is not None and not read_object(folder / "config.json").get(role.enabled_key, True):
            raise CheckpointError(
                f"`{folder}` has no stage `{stage.name}`: `{role.enabled_key}` is false in its config.json",
                hint=f"`omni profiles create {folder}` writes a profile that fits it",
            )
        encoders = role.processor_files and describes_encoder(folder)
        for names in (*role.needed_files, *([role.processor_files] if encoders else [])):
            if not any((folder / name).is_file() for name in names):
                raise CheckpointError(
                    f"`{folder}` has no {names[0]}, which stage `{stage.name}` needs", hint=_INCOMPLETE
                )
        check_adapters(stage, folder, role)
        for part in role.needed_weights:
            component, _, prefix = part.rpartition("/")
            names_of_weights = names_of(folder / component)
            if names_of_weights and not any(name.startswith(prefix) for name in names_of_weights):
                raise CheckpointError(
                    f"`{folder / component}` has no weights called `{prefix}*`, which stage `{stage.name}` needs",
                    hint=_INCOMPLETE,
                )


def read_ahead(folder: Path) -> None:
    """Have the system read the weights into its cache, unless they take more than half of the memory that is free."""
    with contextlib.suppress(OSError, CheckpointError):  # a stage will say what is wrong with a file
        names = (str(file.relative_to(folder)) for file in folder.rglob("*.safetensors"))
        files = [folder / name for name in needed_files(folder, names)]
        fits = 2 * sum(file.stat().st_size for file in files) <= read_memory().available_bytes
        for file in files if fits and hasattr(os, "posix_fadvise") else ():
            with file.open("rb") as opened:
                for start in range(0, file.stat().st_size, _READ_AHEAD_BYTES):
                    os.posix_fadvise(opened.fileno(), start, _READ_AHEAD_BYTES, os.POSIX_FADV_WILLNEED)


def _misfit(stage: StageConfig, family: Family, folder: Path) -> CheckpointError:
    kind = read_model_kind(folder)
    is_pipeline = family.entry_file == "model_index.json"
    what = f"a diffusers pipeline ({kind})" if is_pipeline else f"a {kind}"
    message = f"`{folder}` is {what}; stage `{stage.name}` "
    fitting = [other for other in families().values() if other.fits([stage]) and other.architectures]
    if stage.backend == "diffusers":
        needed = "a diffusers pipeline"
    elif is_pipeline:
        needed = "a model for vLLM"
    elif fitting:
        needed = " or ".join(f"a {other.architectures[0]}" for other in fitting)
    else:
        known = ", ".join(f"`{role.name}` ({role.kind})" for role in family.roles)
        return CheckpointError(f"{message}is not one of its stages, which are {known}", hint=_HINT)
    return CheckpointError(f"{message}needs {needed}", hint=_HINT)
