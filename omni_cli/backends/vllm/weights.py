"""The loader of a model's weights for vLLM: all of them, or one error that names what is missing."""

from __future__ import annotations

import contextlib
import functools
import logging
import os.path
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from vllm.config.load import LoadConfig
from vllm.config.model import ModelConfig
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.platforms import current_platform

from omni_cli.checkpoints.files import used_files
from omni_cli.checkpoints.shards import find_fault, lacking
from omni_cli.core.compat.doubled_names import with_released_names
from omni_cli.core.errors import CheckpointError, OmniError
from omni_cli.stage.protocol import StageSpec

logger = logging.getLogger(__name__)

WHOLE_STAGE = "omni_whole"
_THREADS = 2
# Number of tensors that are read ahead of the model, and the size of the largest one.
_AHEAD = 4
_LARGEST_BYTES = 1 << 28
# The share of a checkpoint's bytes that a model must take for its tensors to be read ahead: the rest is read, too.
_LEAST_SHARE = 0.75
_INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64)


@register_model_loader(WHOLE_STAGE)
class WholeLoader(DefaultModelLoader):
    """vLLM's loader of files as they are (`load_format: auto`) that raises `CheckpointError` if weights are missing.

    vLLM itself reports parameters that got nothing, except those of linear layers, embeddings and experts, and none
    that got only a part, such as one of three fused matrices. These are memory that nothing else initialises, so it is
    filled with NaN while the model is built, and what is NaN afterwards is missing.

    For a CUDA device, threads read tensors ahead into pinned memory, at 13 GiB/s on an H100. From the pages of the
    checkpoint's file, the driver would copy them through its own pinned memory, at 7 GiB/s. A model that takes a small
    part of the checkpoint, or slices of its tensors, is loaded as by vLLM.
    """

    def __init__(self, load_config: LoadConfig) -> None:
        super().__init__(replace(load_config, load_format="auto"))
        self._num_bytes = 0
        self._reads_ahead = False
        self._missing: set[str] = set()

    def create_model(self, *args: object, **kwargs: object) -> nn.Module:
        mode = torch.get_deterministic_debug_mode()
        # The mode in which torch fills empty tensors; it only warns of operations that are not deterministic.
        torch.set_deterministic_debug_mode("warn")
        try:
            model: nn.Module = super().create_model(*args, **kwargs)
        finally:
            torch.set_deterministic_debug_mode(mode)
        return model

    def load_weights(self, model: nn.Module, model_config: ModelConfig) -> None:
        self._num_bytes = sum(parameter.nbytes for parameter in model.parameters())
        super().load_weights(model, model_config)
        # A quantized checkpoint may have no scales of inputs.
        required = {name: weight for name, weight in model.named_parameters() if "input" not in name.rpartition(".")[2]}
        unwritten = {name for name, weight in required.items() if _is_unwritten(weight)} - self._missing
        if unwritten and self._has_nan(model, model_config):
            logger.warning("%s has NaN weights, perhaps %s", model_config.model, ", ".join(sorted(unwritten)))
            unwritten = set()
        if self._missing | unwritten:
            raise lacking(model_config.model, sorted(self._missing | unwritten), finder="vLLM")

    def track_weights_loading(self, model: nn.Module, loaded_weights: set[str] | None, **kwargs: Any) -> None:
        with contextlib.suppress(ValueError):
            super().track_weights_loading(model, loaded_weights, **kwargs)  # adds parameters that it does not require
        if loaded_weights is not None:
            self._missing = {name for name, _ in model.named_parameters()} - loaded_weights

    def _has_nan(self, model: nn.Module, model_config: ModelConfig) -> bool:
        """True if the checkpoint itself has a NaN, as in rows of an embedding that no token has."""
        weights = self.get_all_weights(model_config, model)
        return any(weight.is_floating_point() and bool(weight.isnan().any()) for _, weight in weights)

    def _prepare_weights(
        self,
        model_name_or_path: str,
        subfolder: str | None,
        revision: str | None,
        fall_back_to_pt: bool,
        allow_patterns_overrides: list[str] | None,
    ) -> tuple[str, list[str], bool, str]:
        location = (model_name_or_path, subfolder, revision, fall_back_to_pt)
        folder, paths, *form = super()._prepare_weights(*location, allow_patterns_overrides)
        if not used_files(map(Path, paths)):  # a LoRA adapter's, beside weights in another format
            folder, paths, *form = super()._prepare_weights(*location, ["*.bin"])
        files = used_files(map(Path, paths))
        others = sorted({file.name for file in Path(folder).glob("*.safetensors")} - {file.name for file in files})
        if others and allow_patterns_overrides is None:
            logger.warning("ignored in %s, because the model is in other files: %s", folder, ", ".join(others))
        stored = sum(file.stat().st_size for file in files)
        self._reads_ahead = self._num_bytes > _LEAST_SHARE * stored
        return folder, list(map(str, files)), *form

    def _get_weights_iterator(self, source: DefaultModelLoader.Source) -> Iterator[tuple[str, torch.Tensor]]:
        weights = with_released_names(super()._get_weights_iterator(source))
        return read_ahead(weights) if self._reads_ahead and not current_platform.is_cpu() else weights


def _is_unwritten(weight: torch.Tensor) -> bool:
    """True if a part of a weight is as torch fills empty tensors: with NaN, or the largest integer.

    Of integers a whole row or column must be. Vectors of them are not weights, and some checkpoints omit them.
    """
    if weight.is_meta or not weight.numel():
        return False
    if weight.is_floating_point() and weight.itemsize == 1:
        weight = weight.view(torch.int8)  # float8 has few operations; its NaN is the largest of these
    if weight.is_floating_point():
        return bool(weight.amax().isnan())  # without a mask as large as the weight
    if weight.ndim < 2 or weight.dtype not in _INTEGERS:
        return False
    largest = torch.iinfo(weight.dtype).max
    return any(bool((weight.amin(dim) == largest).any()) for dim in range(weight.ndim))


@contextlib.contextmanager
def naming_missing_weights(spec: StageSpec) -> Iterator[None]:
    """Raise `CheckpointError` with the checkpoint's names for weights that are missing or of another shape.

    Other failures of what runs inside stay as they are. Those of ranks in other processes do not name their cause.
    """
    role = spec.family.role(spec.stage.name)
    needed = () if role is None else role.needed_weights
    prefix = os.path.commonprefix(needed).rpartition("/")[2]  # noqa: RUF071 - of names, by characters
    find = functools.partial(find_fault, Path(spec.model), spec.family.architectures, prefix)
    try:
        yield
    except Exception as error:
        is_other = isinstance(error, (OmniError, MemoryError, torch.OutOfMemoryError))
        if is_other and not isinstance(error, CheckpointError):
            raise
        if fault := find(is_loaded=False):
            raise fault from error
        raise
    if fault := find(is_loaded=True):
        raise fault


def read_ahead(weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield `weights` in their order, those on the host in pinned memory."""
    waiting: deque[tuple[str, Future[torch.Tensor]]] = deque()
    device = torch.cuda.current_device()  # the default of a new thread is the first device
    with ThreadPoolExecutor(_THREADS, initializer=torch.cuda.set_device, initargs=(device,)) as threads:
        for name, tensor in weights:
            waiting.append((name, threads.submit(_pin, tensor)))
            if len(waiting) > _AHEAD:
                first, pinned = waiting.popleft()
                yield first, pinned.result()
        for first, pinned in waiting:
            yield first, pinned.result()
    torch.accelerator.empty_host_cache()


def _pin(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.pin_memory() if tensor.device.type == "cpu" and tensor.nbytes <= _LARGEST_BYTES else tensor
