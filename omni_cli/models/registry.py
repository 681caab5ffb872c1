"""From a checkpoint's architecture to the classes that run its stages."""

from __future__ import annotations

from collections.abc import Callable

from omni_cli.errors import StageError
from omni_cli.stage.messages import Report
from omni_cli.stage.protocol import Stage, StageSpec

OMNI_ARCHITECTURE = "Qwen2_5OmniModel"


def load_stage(spec: StageSpec, emit: Callable[[Report], None]) -> Stage:
    """Load the stage that `spec` describes; `emit` sends progress from within a step."""
    if spec.stage.backend == "diffusers":
        from omni_cli.diffusers_integration.stage import DiffusersStage

        return DiffusersStage(spec, emit)
    return _vllm_stage(spec)(spec, emit)


def _vllm_stage(spec: StageSpec) -> Callable[[StageSpec, Callable[[Report], None]], Stage]:
    try:
        from omni_cli.models.qwen2_5_omni import stages, token2wav_stage
        from omni_cli.vllm_integration.stage import TextStage
    except ImportError as error:
        raise StageError(
            f"vLLM cannot be imported: {error}", stage=spec.stage.name, hint="run `omni doctor`"
        ) from error
    if spec.architecture == OMNI_ARCHITECTURE:
        components = {
            "thinker": stages.ThinkerStage,
            "talker": stages.TalkerStage,
            "token2wav": token2wav_stage.Token2WavStage,
        }
        if spec.stage.name not in components:
            raise StageError(
                f"Qwen2.5-Omni has no part called `{spec.stage.name}`",
                stage=spec.stage.name,
                hint=f"its stages are called {', '.join(components)}",
            )
        return components[spec.stage.name]
    if spec.stage.kind == "ar":
        return TextStage
    raise StageError(
        f"no diffusion model for vLLM in a checkpoint of {spec.architecture}",
        stage=spec.stage.name,
        hint="use `backend: diffusers` for a diffusers pipeline",
    )
