"""The interface of a loaded stage, and what its process needs to load it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from omni_cli.config.schema import ARStageConfig, Dtype, StageConfig
from omni_cli.families import Family
from omni_cli.stage.messages import AppendInput, Report, StageRequest


@dataclass(frozen=True)
class StageSpec:
    """All that a stage's process needs to load: `model` is resolved (a folder or a repo id), `architecture` the
    checkpoint's own name for it.

    `records` makes a stage that can be asked to record what it does, and that begins with how it loads.
    """

    stage: StageConfig
    model: str
    family: Family
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
