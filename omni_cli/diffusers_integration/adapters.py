"""LoRA adapters of a pipeline: all are loaded with it, and each call of the pipeline has one of them, or none."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from omni_cli.checkpoints.adapters import unusable
from omni_cli.config.lora_keys import SECOND_DENOISER, Adapter
from omni_cli.config.schema import DiffusionStageConfig
from omni_cli.errors import UsageError


def check_lora(config: DiffusionStageConfig, pipeline: Any) -> None:
    """Raise `UsageError` for adapters without PEFT, or of a pipeline (or its class) that takes none."""
    if config.lora and importlib.util.find_spec("peft") is None:
        hint = "install it: `pip install 'omni-cli[lora]'`"
        raise UsageError(
            f"stage `{config.name}` cannot use LoRA adapters: they need peft, which is not installed", hint=hint
        )
    if config.lora and not hasattr(pipeline, "load_lora_weights"):
        name = getattr(pipeline, "__name__", type(pipeline).__name__)
        raise UsageError(
            f"stage `{config.name}` takes no LoRA adapters: diffusers has none for {name}",
            hint=f"remove `lora` from stage `{config.name}`",
        )


class PipelineAdapters:
    """The adapters of one pipeline, of which `use` chooses that of the next call."""

    def __init__(self, pipeline: Any, config: DiffusionStageConfig) -> None:
        """Load all of them. Raises `UsageError` for one that the pipeline cannot use as a whole."""
        check_lora(config, pipeline)
        self._pipeline = pipeline
        self._adapters = {adapter.name: adapter for adapter in config.adapters}
        for adapter in config.adapters:
            _load(pipeline, adapter)
        self._used: str | None = None
        if self._adapters:
            pipeline.disable_lora()

    @property
    def effective(self) -> dict[str, object]:
        return {"lora": {name: adapter.source for name, adapter in self._adapters.items()}} if self._adapters else {}

    def use(self, name: str | None) -> bool:
        """Switch to an adapter, None for the base model; return True if another one was in use."""
        if name == self._used:
            return False
        if name is None:
            self._pipeline.disable_lora()
        else:
            self._pipeline.enable_lora()
            adapter = self._adapters[name]
            self._pipeline.set_adapters([adapter.module_name], [1.0 if adapter.scale is None else adapter.scale])
        self._used = name
        return True


def _load(pipeline: Any, adapter: Adapter) -> None:
    second = adapter.path / SECOND_DENOISER
    if second.is_dir() and getattr(pipeline, SECOND_DENOISER, None) is None:
        raise unusable(adapter, f"the pipeline has no `{SECOND_DENOISER}`, for which it has weights")
    num_given = 0
    try:
        if not second.is_dir() or any(adapter.path.glob("*.safetensors")):
            num_given += _load_part(pipeline, adapter, adapter.path)
        if second.is_dir():
            num_given += _load_part(pipeline, adapter, second, load_into_transformer_2=True)
    except MemoryError:
        raise
    except Exception as error:  # whatever the libraries raise for an adapter of another model or format
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise unusable(adapter, " ".join(lines[:2]) or type(error).__name__) from error
    # diffusers only logs which weights it leaves out, and that there is no module for any.
    num_used = sum(_count(model, adapter.module_name) for model in pipeline.components.values())
    if num_used < num_given:
        raise unusable(adapter, f"the pipeline has no place for {num_given - num_used} of its {num_given} weights")


def _load_part(pipeline: Any, adapter: Adapter, path: Path, **options: bool) -> int:
    """Load a file of an adapter and return how many matrices it has."""
    weights = pipeline.lora_state_dict(str(path))
    pipeline.load_lora_weights(str(path), adapter_name=adapter.module_name, **options)
    return sum(weight.ndim > 1 for weight in (weights[0] if isinstance(weights, tuple) else weights).values())


def _count(model: Any, name: str) -> int:
    parameters = model.named_parameters() if hasattr(model, "named_parameters") else ()
    return sum(f".{name}." in f"{own}." and weight.ndim > 1 for own, weight in parameters)
