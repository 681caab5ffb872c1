"""Weights of a pipeline in another form: quantized by torchao, or with channels last in memory."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any

from omni_cli.config.schema import DiffusionStageConfig
from omni_cli.diffusers_integration.parallel import denoisers
from omni_cli.errors import UsageError

_CONFIGURATIONS = {
    "int8_weight_only": "Int8WeightOnlyConfig",
    "int8_dynamic": "Int8DynamicActivationInt8WeightConfig",
    "float8_weight_only": "Float8WeightOnlyConfig",
    "float8_dynamic": "Float8DynamicActivationFloat8WeightConfig",
}
# The first devices with matrix products in float8.
_FLOAT8_CAPABILITY = (8, 9)


def check_quantization(config: DiffusionStageConfig, device: str) -> None:
    """Raise `UsageError` for a quantization without its package or its device."""
    if config.quantization == "none":
        return
    if importlib.util.find_spec("torchao") is None:
        raise _refusal(config, "torchao, which is not installed", "install it: `pip install 'omni-cli[quantization]'`")
    if config.quantization == "float8_dynamic":
        import torch

        if not device.startswith("cuda") or torch.cuda.get_device_capability(device) < _FLOAT8_CAPABILITY:
            raise _refusal(config, f"a GPU with products in float8, and the stage runs on `{device}`")


def reshape_weights(pipeline: Any, config: DiffusionStageConfig) -> WeightForms:
    """Follow the stage's keys for one loaded pipeline. Raises `UsageError` if they change nothing in it."""
    import torch

    models = list(denoisers(pipeline))
    before = sum(map(weight_bytes, models))
    if config.quantization != "none":
        torchao = importlib.import_module("torchao.quantization")
        for model in models:
            torchao.quantize_(model, getattr(torchao, _CONFIGURATIONS[config.quantization])())
        if sum(map(weight_bytes, models)) == before:
            raise _refusal(config, "a transformer with linear layers, and the pipeline has none")
    forms = WeightForms(pipeline, config, before)
    if config.channels_last:
        for module in forms.convolutions:
            module.to(memory_format=_formats(torch)[type(module)])
        if not forms.convolutions:
            raise UsageError(
                f"stage `{config.name}`: `channels_last` has no effect: the pipeline has no convolutions",
                hint=f"--set {config.name}.channels_last=false",
            )
    return forms


class WeightForms:
    """The forms in effect, read from the pipeline's weights."""

    def __init__(self, pipeline: Any, config: DiffusionStageConfig, loaded_bytes: int) -> None:
        """`loaded_bytes` is the size of the denoiser's weights before they were quantized."""
        import torch

        self._models = list(denoisers(pipeline))
        self._config = config
        self._loaded_bytes = loaded_bytes
        parts = [part for part in pipeline.components.values() if isinstance(part, torch.nn.Module)]
        self.convolutions = [each for part in parts for each in part.modules() if type(each) in _formats(torch)]

    @property
    def effective(self) -> dict[str, object]:
        values: dict[str, object] = {}
        if self._config.quantization != "none":
            linear = [type(weight).__name__ for model in self._models for weight in model.parameters()]
            values["quantization"] = self._config.quantization
            values["quantized_weights"] = sum(name not in ("Parameter", "Tensor") for name in linear)
        return values

    @property
    def counters(self) -> Mapping[str, float]:
        """Bytes of the denoiser's weights before and after, and convolutions with channels last."""
        import torch

        found: dict[str, float] = {}
        if self._config.quantization != "none":
            found = {"loaded_weight_bytes": self._loaded_bytes, "weight_bytes": sum(map(weight_bytes, self._models))}
        if self._config.channels_last:
            found["channels_last_convolutions"] = sum(
                each.weight.is_contiguous(memory_format=_formats(torch)[type(each)]) for each in self.convolutions
            )
        return found


def weight_bytes(model: Any) -> int:
    """Size of a model's weights, in the form that they have in memory."""
    return sum(map(_stored_bytes, model.parameters()))


def _stored_bytes(weight: Any) -> int:
    if not hasattr(weight, "__tensor_flatten__"):
        return int(weight.nbytes)
    names, _ = weight.__tensor_flatten__()
    return sum(_stored_bytes(getattr(weight, name)) for name in names)


def _formats(torch: Any) -> dict[type[Any], Any]:
    return {torch.nn.Conv2d: torch.channels_last, torch.nn.Conv3d: torch.channels_last_3d}


def _refusal(config: DiffusionStageConfig, needed: str, hint: str | None = None) -> UsageError:
    return UsageError(
        f"stage `{config.name}`: `quantization: {config.quantization}` needs {needed}",
        hint=hint or f"--set {config.name}.quantization=none",
    )
