"""Whether a checkpoint is one that a profile's stages can load, from its small files alone."""

from __future__ import annotations

from pathlib import Path

from omni_cli.config.engine_config import EngineConfig
from omni_cli.engine.stages.base import OMNI_ARCHITECTURE
from omni_cli.errors import CheckpointError
from omni_cli.models.checkpoint_files import read_model_kind

_HINT = "choose the profile that goes with the checkpoint (`--profile`), or another checkpoint (`--model`)"


def check_fit(config: EngineConfig, model: str) -> None:
    """Raise `CheckpointError` where a stage cannot be a part of the checkpoint in the folder `model`.

    A repo id that is no folder is left to the engines.
    """
    folder = Path(model)
    if not folder.is_dir():
        return
    kind = read_model_kind(folder)
    is_pipeline = (folder / "model_index.json").is_file()
    for stage in config.stages:
        if stage.backend == "diffusers" and not is_pipeline:
            raise CheckpointError(f"`{model}` is a {kind}; stage `{stage.name}` needs a diffusers pipeline", hint=_HINT)
        if stage.backend == "vllm" and is_pipeline:
            raise CheckpointError(
                f"`{model}` is a diffusers pipeline ({kind}); stage `{stage.name}` needs a model for vLLM", hint=_HINT
            )
        is_text_model = stage.kind == "ar" and stage.input is None
        if stage.backend == "vllm" and not is_text_model and kind != OMNI_ARCHITECTURE:
            raise CheckpointError(
                f"`{model}` is a {kind}; stage `{stage.name}` needs a {OMNI_ARCHITECTURE}", hint=_HINT
            )
