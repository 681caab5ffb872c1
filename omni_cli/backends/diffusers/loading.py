"""Load a diffusers pipeline from a folder or a repository, or raise one error that names the fault."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omni_cli.backends.diffusers.arguments import stage_for
from omni_cli.backends.diffusers.memory import check_parts
from omni_cli.backends.diffusers.parallel import denoiser_classes
from omni_cli.backends.diffusers.weights import check_gguf, check_lora, load_gguf, reads_gguf
from omni_cli.checkpoints.files import MODULAR_INDEX, Component, index_file, read_components, read_object
from omni_cli.checkpoints.shards import lacking
from omni_cli.config.schema import DiffusionStageConfig
from omni_cli.core.errors import CheckpointError, OmniError
from omni_cli.stage.failures import first_line

if TYPE_CHECKING:
    from omni_cli.backends.diffusers.description import ModularAdapter


def load_pipeline(
    model: str,
    dtype: str,
    config: DiffusionStageConfig,
    *,
    trust_remote_code: bool = False,
    unused_parts: Sequence[str] = (),
) -> Any:
    """Load the pipeline in the folder `model` to the host, without its `unused_parts`.

    Raises `CheckpointError` for a missing or broken folder and for a pipeline that cannot run here, and `StageError`
    or `UsageError` for a stage's key that the pipeline cannot follow.
    """
    import torch
    from diffusers import DiffusionPipeline

    from omni_cli.backends.diffusers.description import described_pipeline

    folder = Path(model)
    if not folder.is_dir():
        raise CheckpointError(f"no such folder: {model}", hint="name a diffusers folder or a Hugging Face repo id")
    try:
        with _quiet_loading():
            parts = _check_folder(folder, config, trust_remote_code)
            used = {name: part for name, part in parts.items() if name not in unused_parts}
            classes = _model_classes(used)
            check_parts(config, classes)
            check_gguf(config, classes)
            dtypes = {name: getattr(torch, value) for name, value in (("default", dtype), *config.torch_dtype.items())}
            models = _load_models(used, classes, dtypes, config)
            if (folder / MODULAR_INDEX) == index_file(folder):
                pipeline = _modular(folder, dtypes, models, trust_remote_code)
            else:
                pipeline = DiffusionPipeline.from_pretrained(
                    model,
                    dtype=dtypes,
                    trust_remote_code=trust_remote_code,
                    **models,
                    **dict.fromkeys(unused_parts),
                )
            described_pipeline(pipeline).check_runnable()
    except (OmniError, MemoryError):
        raise
    except Exception as error:
        # diffusers, transformers, safetensors and the hub client each raise their own exceptions for broken files.
        is_import = isinstance(error, ImportError)
        hint = "install the package that it names" if is_import else "check that the folder is complete"
        raise CheckpointError(
            f"cannot load a pipeline from {model}: {first_line(error)}",
            hint=hint,
        ) from error
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def _modular(
    folder: Path, dtypes: Mapping[str, object], models: Mapping[str, object], trust_remote_code: bool
) -> ModularAdapter:
    """Return the modular pipeline of a folder with `models` and its other components.

    Not by `load_components`, which only logs that a component cannot be loaded, and leaves it out.
    """
    from diffusers.modular_pipelines import ModularPipeline

    from omni_cli.backends.diffusers.description import ModularAdapter

    pipeline = ModularPipeline.from_pretrained(folder, trust_remote_code=trust_remote_code)
    specs = {name: pipeline.get_component_spec(name) for name in pipeline.pretrained_component_names}
    others = {
        name: spec.load(dtype=dtypes.get(name, dtypes["default"]))
        for name, spec in specs.items()
        if name not in models and spec.pretrained_model_name_or_path is not None
    }
    pipeline.update_components(**{name: part for name, part in models.items() if name in specs}, **others)
    return ModularAdapter(pipeline)


def _model_classes(parts: Mapping[str, Component]) -> dict[str, type[Any]]:
    """Return the classes of those parts in this folder that are models."""
    import torch

    named = {
        name: getattr(importlib.import_module(part.library), part.class_name)
        for name, part in parts.items()
        if part.library in ("diffusers", "transformers") and part.class_name and part.folder is not None
    }
    return {part: part_class for part, part_class in named.items() if issubclass(part_class, torch.nn.Module)}


def _load_models(
    parts: Mapping[str, Component],
    classes: Mapping[str, type[Any]],
    dtypes: Mapping[str, object],
    config: DiffusionStageConfig,
) -> dict[str, object]:
    """Load the pipeline's models and check that each has all its weights.

    Both libraries, and so the pipeline, would initialise missing weights randomly and only log that.
    """
    models = {}
    from_gguf = denoiser_classes(classes) if reads_gguf(config) else {}
    for part, model_class in classes.items():
        dtype, folder = dtypes.get(part, dtypes["default"]), parts[part].folder
        if part in from_gguf:
            assert folder is not None
            models[part] = load_gguf(model_class, config, folder, dtype)
            continue
        models[part], info = model_class.from_pretrained(folder, dtype=dtype, output_loading_info=True)
        missing = sorted(info["missing_keys"])
        if missing:
            raise lacking(str(folder), missing)
    return models


def _check_folder(folder: Path, config: DiffusionStageConfig, trust_remote_code: bool) -> Mapping[str, Component]:
    """Check a folder, and the stage's arguments for its pipeline, before any weights are read; returns its parts."""
    import diffusers

    from omni_cli.backends.diffusers.description import brings_code, class_named, described_checkpoint

    index = index_file(folder)
    if index is None:
        raise CheckpointError(
            f"{folder} has no model_index.json", hint="name the folder that `pipeline.save_pretrained` wrote"
        )
    if brings_code(folder) and not trust_remote_code:
        raise CheckpointError(
            f"{folder} brings its own pipeline code", hint="if you trust it, add `--trust-remote-code`"
        )
    call = described_checkpoint(folder)
    if call.pipeline is not None:
        call.check_runnable()
        stage_for(call, config)
    parts = read_components(folder)
    for part in parts.values():
        if part.library == "diffusers" and part.class_name:
            class_named(part.class_name)
    name = read_object(index).get("_class_name")
    if index.name != MODULAR_INDEX and hasattr(diffusers, str(name)):
        check_lora(config, getattr(diffusers, str(name)))
    missing = {name for name, part in parts.items() if part.folder is not None and not part.folder.is_dir()}
    if missing and isinstance(name, str) and index.name != MODULAR_INDEX:
        # A pipeline makes parts itself whose argument has a default, and diffusers saves none of those.
        needed, _ = getattr(diffusers, name)._get_signature_keys(getattr(diffusers, name))
        parts = {part: spec for part, spec in parts.items() if part in needed or part not in missing}
        missing &= set(needed)
    if missing:
        named = ", ".join(f"`{part}`" for part in sorted(missing))
        raise CheckpointError(f"{folder} is not complete: no folder {named}")
    return parts


@contextmanager
def _quiet_loading() -> Iterator[None]:
    """Disable the progress bars of diffusers and transformers, and restore their settings afterwards."""
    from diffusers.utils import logging as diffusers_logging
    from transformers.utils import logging as transformers_logging

    modules = [m for m in (diffusers_logging, transformers_logging) if m.is_progress_bar_enabled()]
    for module in modules:
        module.disable_progress_bar()
    try:
        yield
    finally:
        for module in modules:
            module.enable_progress_bar()
