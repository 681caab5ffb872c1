"""The loader of a model's weights for vLLM: all of them, or one error that names what is missing."""

from __future__ import annotations

import contextlib
import functools
import logging
import os.path
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from vllm.config.load import LoadConfig
from vllm.config.model import ModelConfig
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

from omni_cli.checkpoints.files import used_files
from omni_cli.checkpoints.shards import find_fault, lacking
from omni_cli.core.compat.doubled_names import with_released_names
from omni_cli.core.errors import CheckpointError, OmniError
from omni_cli.stage.protocol import StageSpec

logger = logging.getLogger(__name__)

WHOLE_STAGE = "omni_whole"
_INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64)


@register_model_loader(WHOLE_STAGE)
class WholeLoader(DefaultModelLoader):
    """vLLM's loader of files as they are (`load_format: auto`) that raises `CheckpointError` if weights are missing.

    vLLM itself reports parameters that got nothing, except those of linear layers, embeddings and experts, and none
    that got only a part, such as one of three fused matrices. These are memory that nothing else initialises, so it is
    filled with NaN while the model is built, and what is NaN afterwards is missing.
    """

    def __init__(self, load_config: LoadConfig) -> None:
        super().__init__(replace(load_config, load_format="auto"))
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
        return folder, list(map(str, files)), *form

    def _get_weights_iterator(self, source: DefaultModelLoader.Source) -> Iterator[tuple[str, torch.Tensor]]:
        return with_released_names(super()._get_weights_iterator(source))


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

    Failures while anything else is done stay as they are. Those of ranks in other processes do not name their cause.
    """
    role = spec.family.role(spec.stage.name)
    needed = () if role is None else role.needed_weights
    prefix = os.path.commonprefix(needed).rpartition("/")[2]  # noqa: RUF071 - of names, by characters
    # Those of a family are of one form; what it claims beside them has another.
    known = spec.family.architectures if spec.architecture in spec.family.architectures else ()
    find = functools.partial(find_fault, Path(spec.model), known, prefix)
    try:
        yield
    except Exception as error:
        is_other = isinstance(error, (OmniError, MemoryError, torch.OutOfMemoryError))
        if is_other and not isinstance(error, CheckpointError):
            raise
        reads = spec.stage.has_ranks_elsewhere or _reads_weights(error)
        if reads and (fault := find(is_loaded=False)):
            raise fault from error
        raise
    if fault := find(is_loaded=True):
        raise fault


def _reads_weights(error: BaseException | None) -> bool:
    """True if an exception, or a cause of it, was raised while a loader or a model read its weights."""
    while error is not None:
        if any(frame.f_code.co_name == "load_weights" for frame, _ in traceback.walk_tb(error.__traceback__)):
            return True
        error = error.__cause__ or error.__context__
    return False
