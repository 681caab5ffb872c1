"""diffusers' own call of a pipeline as the reference of a stage."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import DiffusionPipeline
from PIL import Image

from omni_cli.backends.diffusers.arguments import call_arguments, resolve_request, stage_for
from omni_cli.backends.diffusers.description import described_pipeline
from omni_cli.backends.diffusers.requests import DiffusionRequest
from omni_cli.backends.diffusers.stage import get_conditions
from omni_cli.backends.diffusers.weights import PipelineAdapters
from omni_cli.checkpoints.files import MODULAR_INDEX, index_file
from omni_cli.config.schema import DiffusionStageConfig, EngineConfig
from omni_cli.models.reference import check_whole, get_device, noise_in
from omni_cli.models.scores import EngineOutput, Expected, NoReferenceError, Way
from omni_cli.requests.outputs import GenerateRequest

_ROUNDING_KEYS = ("execution", "batching", "precision", "attention_backend", "channels_last", "context_parallel")
_CHANGING_KEYS = ("cache", "quantization", "enable_vae_tiling")


class PipelineReference:
    """A pipeline as diffusers loads it, without any of the stage's accelerations.

    A stage without keys that change rounding must make the same output to the bit.
    """

    takes_adapters = True
    # Whatever the processor: sums are not rougher on one side.
    has_kernels_of_stage = True

    def __init__(self, folder: Path, config: EngineConfig, way: Way) -> None:
        self._stage = get_diffusion_stage(config)
        for key in _CHANGING_KEYS:
            if is_set(self._stage, key):
                raise NoReferenceError(f"stage `{self._stage.name}` sets `{key}`, which changes outputs on purpose")
        check_whole(way)
        if index_file(folder) == folder / MODULAR_INDEX:
            raise NoReferenceError("a modular pipeline has no reference yet")
        self._noise_dtype = getattr(torch, way.noise_dtype)
        own = {name: getattr(torch, dtype) for name, dtype in self._stage.torch_dtype.items()}
        dtypes = {"default": getattr(torch, way.dtype), **(own if way.dtype == config.dtype else {})}
        trust = {"trust_remote_code": True} if config.trust_remote_code else {}
        self._pipeline = DiffusionPipeline.from_pretrained(folder, dtype=dtypes, **trust).to(get_device())
        self._pipeline.set_progress_bar_config(disable=True)
        self._call = described_pipeline(self._pipeline)
        self._adapters = PipelineAdapters(self._pipeline, self._stage)

    @property
    def is_exact(self) -> bool:
        return not any(is_set(self._stage, key) for key in _ROUNDING_KEYS)

    def expected(self, output: EngineOutput) -> Expected:
        arrays = dict(zip(output.arrays, self.run(output.request), strict=False))
        return Expected({}, arrays, self._stage.name, self.is_exact)

    def run(self, request: GenerateRequest) -> list[np.ndarray]:
        """Return the arrays of the output."""
        stage = stage_for(self._call, self._stage)
        conditions = get_conditions(request, self._call, self._pipeline, get_device())
        unresolved = DiffusionRequest.from_arguments(
            request.request_id, request.prompt, request.seed, request.diffusion, conditions
        )
        arguments = call_arguments(resolve_request(unresolved, stage, self._pipeline, self._call), self._call)
        self._adapters.use(self._stage.choose_adapter(request.lora))
        # Some pipelines draw from the global generator, with or without another.
        torch.manual_seed(request.seed)
        if "generator" in inspect.signature(self._pipeline.__call__).parameters:
            arguments["generator"] = torch.Generator("cpu").manual_seed(request.seed)
        with noise_in(self._noise_dtype), torch.no_grad():
            return get_arrays(self._pipeline(**arguments))


def get_diffusion_stage(config: EngineConfig) -> DiffusionStageConfig:
    """Return the last stage, which is a diffusers pipeline."""
    stage = config.stages[-1]
    assert isinstance(stage, DiffusionStageConfig)
    return stage


def is_set(stage: DiffusionStageConfig, key: str) -> bool:
    """True if a key has another value than its default."""
    value, default = getattr(stage, key), type(stage).model_fields[key].get_default(call_default_factory=True)
    return bool(value != default)


def get_arrays(output: Any) -> list[np.ndarray]:
    """Flatten a pipeline's output.

    Images are uint8 (height, width, 3 or 4), videos uint8 (num_frames, height, width, 3), sounds float32 (num_samples,)
    or (num_samples, channels). Other arrays, as they are, if it has none of these.
    """
    found: list[np.ndarray] = []
    others: list[np.ndarray] = []
    for name, value in output.items():
        if name in ("images", "image"):
            found += _images(value)
        elif name in ("frames", "video", "videos"):
            # Some pipelines make one video without an axis for a batch.
            found += [np.stack(_images(video)) for video in (value if np.asarray(value[0]).ndim == 4 else [value])]
        elif name in ("audios", "audio", "sound"):
            found += [] if value is None else _sounds(value[None] if name == "sound" else value)
        elif value is not None:
            others += _others(value)
    return found or others


def _images(value: Any) -> list[np.ndarray]:
    """Return the images of a list, which may have lists of its own, or of an array."""
    if isinstance(value, Image.Image):
        return [np.asarray(value if value.mode == "RGBA" else value.convert("RGB"))]
    if isinstance(value, list | tuple):
        return [image for item in value for image in _images(item)]
    array = np.asarray(value)
    if not np.isfinite(array).all():
        raise ValueError("the output has NaN or infinite values")
    if array.dtype.kind == "f":
        array = (array.astype(np.float32) * 255).round().astype(np.uint8)
    if array.shape[-1] > 4 and array.shape[-3] in (1, 3):
        array = np.moveaxis(array, -3, -1)
    return [array] if array.ndim == 3 else list(array)


def _sounds(value: Any) -> list[np.ndarray]:
    array = np.asarray(value.float().cpu() if isinstance(value, torch.Tensor) else value, dtype=np.float32)
    items = [array] if array.ndim == 1 else list(array)
    return [item if item.ndim == 1 else item[0] if len(item) == 1 else item.T for item in items]


def _others(value: Any) -> list[np.ndarray]:
    if isinstance(value, list | tuple):
        return [array for item in value for array in _others(item)]
    return [np.asarray(value.float().cpu() if isinstance(value, torch.Tensor) else value)]
