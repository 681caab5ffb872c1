"""The sampling parameters of a request: its own over the profile's over the checkpoint's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm import SamplingParams
from vllm.exceptions import VLLMClientError
from vllm.sampling_params import RequestOutputKind

from omni_cli.config.schema import ARStageConfig
from omni_cli.errors import InputError
from omni_cli.outputs import GenerateRequest
from omni_cli.vllm_integration.grammars import ConstrainedParams, without_filler
from omni_cli.vllm_integration.prompts import one_line


def make_sampling_params(
    request: GenerateRequest,
    stage: ARStageConfig,
    context: int,
    defaults: Mapping[str, Any],
    extra: Mapping[str, object],
    *,
    makes_text: bool,
) -> SamplingParams:
    """Return vLLM's parameters; without a maximum of tokens, an answer may fill the `context`.

    Raises `InputError` for a wrong parameter, and for a maximum that no prompt leaves room for.
    """
    asked: dict[str, Any] = dict(request.sampling)
    name = "max_tokens"
    if request.max_audio_tokens is not None and not makes_text:
        asked["max_tokens"], name = request.max_audio_tokens, "max_audio_tokens"
    limit = asked.get("max_tokens")
    if isinstance(limit, int) and limit > context:
        raise InputError(f"`{name}` is {limit}, and the context of stage `{stage.name}` has {context} tokens")
    given = {"seed": request.seed, "max_tokens": None, **defaults, **stage.sampling.set_values(), **asked, **extra}
    try:
        if given.get("structured_outputs") is not None:
            given["structured_outputs"] = without_filler(given["structured_outputs"])
        return ConstrainedParams(**given, output_kind=RequestOutputKind.DELTA)
    except (ValueError, TypeError, VLLMClientError) as error:
        raise InputError(f"sampling: {one_line(error)}") from error
