"""The profile that loads best for requests that are all known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omni_cli.config.schema import DiffusionStageConfig, EngineConfig, ImageSize, StageConfig
from omni_cli.inputs.request_spec import BadRequest, RequestSpec

_MIN_REQUESTS_TO_CHOOSE = 8


def fit_to_requests(
    config: EngineConfig, specs: Sequence[RequestSpec | BadRequest], *, makes_video: bool
) -> EngineConfig:
    """Warm up at the size that all requests ask for, and choose no execution mode for a few of them.

    To choose one, a pipeline compiles first, which fewer than eight requests do not repay; a video alone does.
    """
    good = [spec.request for spec in specs if isinstance(spec, RequestSpec)]
    keys: dict[str, Any] = {}
    for name in ImageSize.model_fields:
        asked = {request.diffusion.get(name) for request in good}
        if len(asked) == 1 and None not in asked:
            keys[name] = asked.pop()

    def fitted(stage: StageConfig) -> StageConfig:
        if not isinstance(stage, DiffusionStageConfig) or stage.backend != "diffusers":
            return stage
        is_open = stage.execution is None and len(good) < _MIN_REQUESTS_TO_CHOOSE and not makes_video
        return stage.model_copy(update=keys | ({"execution": "eager"} if is_open else {}))

    return config.with_stages(map(fitted, config.stages))
