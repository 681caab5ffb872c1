"""Whether a checkpoint is one that a profile's stages can load, from its small files alone."""

from __future__ import annotations

from pathlib import Path

from omni_cli.checkpoints.files import read_model_kind
from omni_cli.config.schema import EngineConfig, StageConfig
from omni_cli.errors import CheckpointError
from omni_cli.models.registry import OMNI_ARCHITECTURE

_INCOMPLETE = "the folder is incomplete: download or copy it again"
# Files that a stage reads beside the weights; of each group one is enough.
_NEEDED_FILES = {
    "thinker": (
        ("tokenizer.json", "vocab.json"),
        ("processor_config.json", "preprocessor_config.json"),
    ),
    "talker": (("spk_dict.pt",),),
}
_HINT = "choose the profile that goes with the checkpoint (`--profile`), or another checkpoint (`--model`)"


def check_fit(config: EngineConfig, model: str) -> None:
    """Raise `CheckpointError` where a stage cannot be a part of the checkpoint in the folder `model`."""
    folder = Path(model)
    kind = read_model_kind(folder)
    is_pipeline = (folder / "model_index.json").is_file()
    for stage in config.stages:
        _check_stage(stage, folder, kind, is_pipeline=is_pipeline)
        for names in _NEEDED_FILES.get(stage.name, ()) if kind == OMNI_ARCHITECTURE else ():
            if not any((folder / name).is_file() for name in names):
                raise CheckpointError(
                    f"`{folder}` has no {names[0]}, which stage `{stage.name}` needs", hint=_INCOMPLETE
                )


def _check_stage(stage: StageConfig, folder: Path, kind: str, *, is_pipeline: bool) -> None:
    if stage.backend == "diffusers":
        needed = None if is_pipeline else "a diffusers pipeline"
    elif is_pipeline:
        needed = "a model for vLLM"
    else:
        is_text_model = stage.kind == "ar" and stage.input is None
        needed = None if is_text_model or kind == OMNI_ARCHITECTURE else f"a {OMNI_ARCHITECTURE}"
    if needed is not None:
        what = f"a diffusers pipeline ({kind})" if is_pipeline else f"a {kind}"
        raise CheckpointError(f"`{folder}` is {what}; stage `{stage.name}` needs {needed}", hint=_HINT)
