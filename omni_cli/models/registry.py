"""From a stage of a profile to the class that runs it."""

from __future__ import annotations

from collections.abc import Callable

from omni_cli.config.families import load
from omni_cli.core.errors import StageError
from omni_cli.stage.messages import Report
from omni_cli.stage.protocol import Stage, StageSpec


def load_stage(spec: StageSpec, emit: Callable[[Report], None]) -> Stage:
    """Load the stage that `spec` describes; `emit` sends progress from within a step."""
    role = spec.family.role(spec.stage.name)
    if role is None:
        raise StageError(
            f"{spec.family.title} has no stage called `{spec.stage.name}`",
            stage=spec.stage.name,
            hint=f"its stages are {', '.join(role.name for role in spec.family.roles)}",
        )
    try:
        stage: Callable[[StageSpec, Callable[[Report], None]], Stage] = load(role.stage)
    except ImportError as error:
        raise StageError(
            f"{role.backend} cannot be imported: {error}", stage=spec.stage.name, hint="run `omni doctor`"
        ) from error
    return stage(spec, emit)
