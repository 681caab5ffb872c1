"""The interface of a loaded stage, and the data that its process needs to load it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from omni_cli.config.families import Family
from omni_cli.config.schema import ARStageConfig, StageConfig
from omni_cli.config.stage_keys import Dtype
from omni_cli.requests.outputs import GenerateRequest
from omni_cli.stage.messages import AppendInput, Report


@dataclass(frozen=True)
class StageSpec:
    """Everything that a stage's process needs to load it.

    `model` is resolved, to a folder or a repo id; `architecture` is the checkpoint's name for it. With `records`, the
    stage can record its activity, starting with its loading. `max_concurrency` is how many requests it will have at
    once at most, if that is known: kernels and graphs for more need not be made ahead. `mps` is as in the profile, and
    `mps_folder` where the engine's MPS server is, if it has one. `next_stage` takes this one's output.
    """

    stage: StageConfig
    model: str
    family: Family
    architecture: str
    dtype: Dtype
    seed: int
    trust_remote_code: bool
    records: bool = False
    max_concurrency: int | None = None
    mps: Literal["auto", True, False] = False
    mps_folder: str | None = None
    next_stage: StageConfig | None = None

    @property
    def ar(self) -> ARStageConfig:
        """Return `stage` as an autoregressive one."""
        assert isinstance(self.stage, ARStageConfig)
        return self.stage


class Stage(Protocol):
    """Runs requests of one stage; called from one thread.

    If `add` or `append` raises `OmniError`, only that request fails.
    """

    @property
    def effective(self) -> dict[str, object]:
        """Return the effective settings, read back after loading."""

    @property
    def settings(self) -> dict[str, object]:
        """Return configuration keys as the engine resolved them, with defaults, as far as they can be read back."""

    @property
    def execution_counters(self) -> dict[str, float]:
        """Return counters since loading began: steps that ran or were replayed, compilations, copies."""

    @property
    def voices(self) -> tuple[str, ...]:
        """Return the names of the speakers among which a request chooses in this stage."""

    @property
    def media(self) -> tuple[str, ...] | None:
        """Return the kinds of media that the loaded model takes; None if its profile alone decides."""

    def warm_up(self) -> None:
        """Run what makes the first request as fast as later ones; called once, after loading."""

    def add(self, request: GenerateRequest) -> None: ...

    def append(self, command: AppendInput) -> None:
        """Add input to a request that was added with `more_follows`. Ended requests are ignored."""

    def abort(self, request_id: str) -> None:
        """Drop a request; nothing is reported about it afterwards. Unknown ids are ignored."""

    def interrupt(self, request_id: str) -> None:
        """Ask a running step to drop the request early; called from another thread, before `abort`."""

    def has_work(self) -> bool:
        """True if a step would do something; False while all requests wait for more input."""

    def step(self) -> list[Report]:
        """Run one engine step; return finished and failed requests, and progress."""

    def sleep(self, level: int) -> bool:
        """Give the device's memory back, without requests, and return True: the stage is asleep."""

    def wake_up(self, tags: Sequence[str] | None) -> bool:
        """Put back what vLLM's `tags` name, by default all; return True while the stage is still asleep."""

    def close(self, *, process_ends: bool = False) -> None:
        """Free the stage's resources; if the process ends next, only those that would outlive it."""
