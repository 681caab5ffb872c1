"""Convert a pipeline's exception to a stage's error."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence

from omni_cli.config.schema import DiffusionStageConfig
from omni_cli.diffusers_integration.memory import advised
from omni_cli.diffusers_integration.pixels import BadOutputError, WrongSizeError
from omni_cli.diffusers_integration.requests import DiffusionRequest
from omni_cli.errors import InputError, OmniError, StageError
from omni_cli.stage.library_messages import translate

_CHECKING_MODULES = ("diffusers.pipelines.", "diffusers.image_processor", "diffusers.video_processor")


def describe_failure(
    raised: Exception, config: DiffusionStageConfig, requests: Sequence[DiffusionRequest]
) -> OmniError:
    """Return the error of all requests that shared the failed pipeline call, with its traceback in `details`.

    The frames of the call are cleared: they hold its tensors, which would live as long as the error.
    """
    import torch

    details = "".join(traceback.format_exception(raised))
    keys, is_rejection = list(_memory_keys(raised, config)), _is_rejection(raised)
    traceback.clear_frames(raised.__traceback__)
    # torch's CPU allocator raises a plain RuntimeError.
    out_of_memory = isinstance(raised, torch.OutOfMemoryError | MemoryError) or "can't allocate" in str(raised)
    translated, hint = translate(" ".join(str(raised).split()), config)
    if out_of_memory:
        size = "" if requests[0].width is None else f" of {requests[0].width}x{requests[0].height}"
        message = f"not enough memory for {'an image' if len(requests) == 1 else f'{len(requests)} images'}{size}"
        ours = " or ".join(f"`--set {key}`" for key in keys)
        hint = ", or ".join(filter(None, ("use a smaller `height` and `width`", ours, hint)))
    elif isinstance(raised, WrongSizeError):
        return InputError(str(raised), hint="leave out `height` and `width`, or set the size that it makes")
    elif isinstance(raised, BadOutputError) and all(request.num_inference_steps == 1 for request in requests):
        # Schedules that end at a given noise level divide by zero when the first step is the last.
        return InputError(f"{raised}: this model needs more than one step", hint="use 2 `num_inference_steps` or more")
    elif isinstance(raised, BadOutputError):
        message, hint = str(raised), "try more `num_inference_steps`, other guidance, or `dtype: float32`"
    elif is_rejection:
        return InputError(f"stage `{config.name}` rejects the request: {translated}", hint=hint)
    else:
        message = translated if hint else f"{type(raised).__name__}: {translated}"
    return StageError(
        f"stage `{config.name}`: {message}",
        stage=config.name,
        request_id=requests[0].request_id if len(requests) == 1 else None,
        hint=hint,
        details=details,
    )


def _is_rejection(raised: Exception) -> bool:
    """Tell whether a pipeline of diffusers raised it itself: some check their inputs only where they use them."""
    modules = [str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(raised.__traceback__)]
    return isinstance(raised, ValueError) and bool(modules) and modules[-1].startswith(_CHECKING_MODULES)


def _memory_keys(raised: Exception, config: DiffusionStageConfig) -> Iterator[str]:
    """Yield settings that would save memory where the call failed; reads the frames of its traceback."""
    import torch

    objects = (frame.f_locals.get("self") for frame, _ in traceback.walk_tb(raised.__traceback__))
    if any(getattr(one, "use_tiling", None) is False for one in objects):
        yield f"{config.name}.enable_vae_tiling=true"
    yield from advised(config, "cuda" if isinstance(raised, torch.OutOfMemoryError) else "cpu")
