"""The interface of a loaded stage, and which one a configuration asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from omni_cli.config.engine_config import ARStageConfig, Dtype, StageConfig
from omni_cli.engine.messages import AppendInput, Report, StageRequest
from omni_cli.errors import StageError

OMNI_ARCHITECTURE = "Qwen2_5OmniModel"


@dataclass(frozen=True)
class StageSpec:
    """All that a stage's process needs to load: `model` is resolved (a folder or a repo id).

    `records` makes a stage that can be asked to record what it does, and that begins with how it loads.
    """

    stage: StageConfig
    model: str
    architecture: str
    dtype: Dtype
    seed: int
    trust_remote_code: bool
    records: bool = False

    @property
    def ar(self) -> ARStageConfig:
        """`stage`, for those who run only autoregressive ones."""
        assert isinstance(self.stage, ARStageConfig)
        return self.stage


class Stage(Protocol):
    """Runs requests of one stage; called from one thread.

    `add` and `append` may raise `OmniError`: that request alone fails.
    """

    @property
    def effective(self) -> dict[str, Any]:
        """Settings that really hold, read back after loading."""

    @property
    def settings(self) -> dict[str, Any]:
        """Configuration keys as the engine has them, defaults filled in; only those that can be read back."""

    @property
    def engagement(self) -> dict[str, float]:
        """Counters since the stage began to load: what really ran, replayed, was compiled or copied."""

    def add(self, request: StageRequest) -> None: ...

    def append(self, command: AppendInput) -> None:
        """More input of a request that was added with `more_follows`. Ids that have ended are ignored."""

    def abort(self, request_id: str) -> None:
        """Drop a request; nothing is reported of it afterwards. Unknown ids are ignored."""

    def interrupt(self, request_id: str) -> None:
        """From another thread, before `abort`: a step that is running the request may leave it early."""

    def has_work(self) -> bool:
        """Whether a step would do something; where all requests wait for more input, it would not."""

    def step(self) -> list[Report]:
        """One turn of the engine: what has been finished or has failed, and progress."""

    def close(self, *, process_ends: bool = False) -> None:
        """Free what it holds; where the process ends next, only what would outlive that."""


def load_stage(spec: StageSpec, emit: Callable[[Report], None]) -> Stage:
    """Load the stage that `spec` describes; `emit` sends progress from within a step."""
    if spec.stage.backend == "diffusers":
        from omni_cli.engine.stages.diffusers_stage import DiffusersStage

        return DiffusersStage(spec, emit)
    return _vllm_stage(spec)(spec, emit)


def _vllm_stage(spec: StageSpec) -> Callable[[StageSpec, Callable[[Report], None]], Stage]:
    try:
        from omni_cli.engine.stages import qwen2_5_omni, qwen2_5_omni_token2wav, vllm_stage
    except ImportError as error:
        raise StageError(
            f"vLLM cannot be imported: {error}", stage=spec.stage.name, hint="run `omni doctor`"
        ) from error
    if spec.architecture == OMNI_ARCHITECTURE:
        components = {
            "thinker": qwen2_5_omni.ThinkerStage,
            "talker": qwen2_5_omni.TalkerStage,
            "token2wav": qwen2_5_omni_token2wav.Token2WavStage,
        }
        if spec.stage.name not in components:
            raise StageError(
                f"Qwen2.5-Omni has no part called `{spec.stage.name}`",
                stage=spec.stage.name,
                hint=f"its stages are called {', '.join(components)}",
            )
        return components[spec.stage.name]
    if spec.stage.kind == "ar":
        return vllm_stage.TextStage
    raise StageError(
        f"no diffusion model for vLLM in a checkpoint of {spec.architecture}",
        stage=spec.stage.name,
        hint="use `backend: diffusers` for a diffusers pipeline",
    )
