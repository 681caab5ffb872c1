"""Schemathesis' check that valid data is accepted, apart from refusals that no JSON Schema can state."""

from __future__ import annotations

import re
from typing import Any

import schemathesis
from schemathesis.specs.openapi.checks import positive_data_acceptance

# Facts of the model or of the content: its speakers, its sizes, a prompt without words, a file that is not an image.
OF_THE_MODEL = (
    None,
    "prompt_too_long",
    "invalid_image_url",
    "invalid_image",
    "invalid_video_url",
    "invalid_video",
    "invalid_audio_url",
    "invalid_audio",
    "invalid_mask",
    "unsupported_input",
    "missing_input",
    "invalid_base64",
    "unknown_audio",
    "voice_exists",
)
# Fields that contradict each other, limits that are options of the command, and a text that must be JSON.
OF_OTHER_FIELDS = (
    "audio",
    "voice",
    "ref_audio",
    "audio.format",
    "response_format",
    "stream_options",
    "structured_outputs",
    "structured_outputs.json",
    "stream",
    "timestamp_granularities",
    "tool_choice",
    "tools",
    "top_logprobs",
    "n",
    "size",
    "output_compression",
    "best_of",
    "max_tokens",
    "prompt",
)


@schemathesis.check
def valid_data_is_accepted(ctx: Any, response: Any, case: Any) -> None:
    if response.status_code == 400 and _is_beyond_a_schema(response.json()["error"]):
        return
    positive_data_acceptance(ctx, response, case)


def _is_beyond_a_schema(error: dict[str, Any]) -> bool:
    return (
        error["code"] in OF_THE_MODEL
        or (error["code"] in ("invalid_value", "unsupported_value") and error["param"] in OF_OTHER_FIELDS)
        or error["message"].endswith(("a message needs content", "needs its `id` or its `transcript`"))
        or error["message"].endswith("is given more than once")
        # Which not every model speaks.
        or (error["code"], error["param"]) == ("unsupported_parameter", "language")
    )


# Work that a request may ask for without end: the answer's shape does not depend on it.
MOST = {
    "num_inference_steps": 3,
    "max_tokens": 4,
    "max_completion_tokens": 4,
    "min_tokens": 4,
    "n": 2,
    "num_frames": 5,
    "seconds": 1,
}
SIZE = re.compile(r"\d+x\d+", re.ASCII)


@schemathesis.hook
def before_call(_context: Any, case: Any, _arguments: Any) -> None:
    """Shorten valid requests."""
    if not isinstance(case.body, dict) or not case.meta.generation.mode.is_positive:
        return
    for name, most in MOST.items():
        if isinstance(case.body.get(name), int):
            case.body[name] = min(case.body[name], most)
    if isinstance(case.body.get("size"), str) and SIZE.fullmatch(case.body["size"]):
        case.body["size"] = "64x64"
