"""Convert a pipeline's exception to a stage's error."""

from __future__ import annotations

import importlib.util
import traceback
from collections.abc import Iterator, Sequence

from omni_cli.config.schema import DiffusionStageConfig
from omni_cli.diffusers_integration.memory import advised
from omni_cli.diffusers_integration.notes import PIPELINE_MODULES
from omni_cli.diffusers_integration.pixels import BadOutputError
from omni_cli.diffusers_integration.requests import DiffusionRequest
from omni_cli.errors import InputError, OmniError, StageError
from omni_cli.stage.failures import translate

# Raised by whatever uses wrong values first; subclasses of RuntimeError are a device's and a compiler's.
_OF_WRONG_VALUES = (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, AssertionError)
# Names under which a package is installed, where they differ from that of its module.
_INSTALLED_AS = {"cv2": "opencv-python", "bs4": "beautifulsoup4"}


def describe_failure(
    raised: Exception,
    config: DiffusionStageConfig,
    requests: Sequence[DiffusionRequest],
    *,
    has_denoised: bool = True,
) -> OmniError:
    """Return the error of all requests that shared the failed pipeline call, with its traceback in `details`.

    A pipeline rejects a request by an exception of its own, or fails on its values in the first step or before. The
    frames of the call are cleared: they hold its tensors, which would live as long as the error.
    """
    import torch

    details = "".join(traceback.format_exception(raised))
    keys = list(_memory_keys(raised, config))
    is_of_values = isinstance(raised, _OF_WRONG_VALUES) or type(raised) is RuntimeError
    is_rejection = _is_of_pipeline(raised) or (is_of_values and not has_denoised)
    traceback.clear_frames(raised.__traceback__)
    # torch's CPU allocator raises a plain RuntimeError.
    out_of_memory = isinstance(raised, torch.OutOfMemoryError | MemoryError) or "can't allocate" in str(raised)
    translated, hint = translate(" ".join(str(raised).split()), config)
    if out_of_memory:
        size = "" if requests[0].width is None else f" of {requests[0].width}x{requests[0].height}"
        message = f"not enough memory for {'an image' if len(requests) == 1 else f'{len(requests)} images'}{size}"
        ours = " or ".join(f"`--set {key}`" for key in keys)
        hint = ", or ".join(filter(None, ("use a smaller `height` and `width`", ours, hint)))
    elif isinstance(raised, BadOutputError) and all(request.num_inference_steps == 1 for request in requests):
        # Schedules that end at a given noise level divide by zero when the first step is the last.
        return InputError(f"{raised}: this model needs more than one step", hint="use 2 `num_inference_steps` or more")
    elif isinstance(raised, BadOutputError):
        message, hint = str(raised), "try more `num_inference_steps`, other guidance, or `dtype: float32`"
    elif isinstance(raised, NameError) and raised.name and importlib.util.find_spec(raised.name) is None:
        # A pipeline imports some modules only where they are installed.
        package = _INSTALLED_AS.get(raised.name, raised.name)
        message, hint = f"the pipeline needs the package `{package}`", f"pip install {package}"
    elif is_rejection:
        words = translated if isinstance(raised, ValueError) else f"{type(raised).__name__}: {translated}"
        return InputError(f"stage `{config.name}`: its pipeline rejects the request: {words}", hint=hint)
    else:
        message = translated if hint else f"{type(raised).__name__}: {translated}"
    return StageError(
        f"stage `{config.name}`: {message}",
        stage=config.name,
        request_id=requests[0].request_id if len(requests) == 1 else None,
        hint=hint,
        details=details,
    )


def _is_of_pipeline(raised: Exception) -> bool:
    """Return True if a pipeline of diffusers raised it itself: some check their inputs only where they use them."""
    modules = [str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(raised.__traceback__)]
    return isinstance(raised, ValueError | TypeError) and bool(modules) and modules[-1].startswith(PIPELINE_MODULES)


def _memory_keys(raised: Exception, config: DiffusionStageConfig) -> Iterator[str]:
    """Yield settings that would save memory where the call failed; reads the frames of its traceback."""
    import torch

    objects = (frame.f_locals.get("self") for frame, _ in traceback.walk_tb(raised.__traceback__))
    if any(getattr(one, "use_tiling", None) is False for one in objects):
        yield f"{config.name}.enable_vae_tiling=true"
    yield from advised(config, "cuda" if isinstance(raised, torch.OutOfMemoryError) else "cpu")
