"""Weights of a pipeline in another form: quantized, with channels last in memory, or with LoRA adapters."""

from __future__ import annotations

import importlib
import importlib.util
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omni_cli.backends.diffusers.parallel import Parts, denoiser_classes, denoisers
from omni_cli.checkpoints.adapters import unusable
from omni_cli.config.schema import DiffusionStageConfig
from omni_cli.config.stage_keys import GGUF_SUFFIX, SECOND_DENOISER, Adapter
from omni_cli.core.errors import CheckpointError, UsageError

_TORCHAO = {
    "int8_weight_only": "Int8WeightOnlyConfig",
    "int8_dynamic": "Int8DynamicActivationInt8WeightConfig",
    "float8_weight_only": "Float8WeightOnlyConfig",
    "float8_dynamic": "Float8DynamicActivationFloat8WeightConfig",
}
# The arguments with which transformers and diffusers make these layers.
_BITSANDBYTES: dict[str, tuple[str, dict[str, object]]] = {
    "bitsandbytes_8bit": ("Linear8bitLt", {"has_fp16_weights": False, "threshold": 6.0}),
    "bitsandbytes_nf4": ("Linear4bit", {"quant_type": "nf4", "compress_statistics": False}),
}
# The first devices with matrix products in float8.
_FLOAT8_CAPABILITY = (8, 9)
# Products in float8, with their inputs quantized in compiled code, take 0.56 to 0.82 of bfloat16's time on an H200 for
# 4,096 rows of layers with 3072 inputs, and up to 1.75 of it below 1,000 rows; a model of 2240 lost at 512 x 512. So in
# the compiled blocks, small layers, those for text and those with one row per output, which modulate, keep their
# weights, by the names that diffusers gives them.
_MIN_FLOAT8_FEATURES = 2560
_FEW_ROWS = re.compile(r"(^|[._])(txt|text|context|add|norm\d*|adaln|mod|modulation)([._]|$)|\.attn2\.to_[kv]$", re.I)


def check_quantization(config: DiffusionStageConfig, device: str) -> None:
    """Raise `UsageError` for a quantization without its package, its file or its device."""
    if config.quantization == "none":
        return
    package, extra = "torchao", "quantization"
    if reads_gguf(config):
        package = "gguf"
    elif config.quantization in _BITSANDBYTES:
        package = extra = "bitsandbytes"
    if importlib.util.find_spec(package) is None:
        raise _refusal(config, f"{package}, which is not installed", f"install it: `pip install 'omni-cli[{extra}]'`")
    if reads_gguf(config) and not Path(config.quantization).is_file():
        raise _refusal(config, "the file, and there is none of that name", "name a GGUF file by its path")
    if config.quantization == "float8_dynamic":
        if config.execution == "eager":
            # The types of activations are converted by kernels of their own then.
            hint = f"--set {config.name}.execution=compile"
            raise _refusal(config, "compiled code, and eager code is 1.6 to 1.8 times as slow as without it", hint)
        import torch

        if not device.startswith("cuda") or torch.cuda.get_device_capability(device) < _FLOAT8_CAPABILITY:
            raise _refusal(config, f"a GPU with products in float8, and the stage runs on `{device}`")


def reads_gguf(config: DiffusionStageConfig) -> bool:
    """True if the denoiser's weights come from a GGUF file."""
    return config.quantization.endswith(GGUF_SUFFIX)


def check_gguf(config: DiffusionStageConfig, parts: Parts) -> None:
    """Raise `UsageError` for a GGUF file that the pipeline cannot load, before weights are read."""
    if not reads_gguf(config):
        return
    models = denoiser_classes(parts)
    if len(models) != 1:
        raise _refusal(config, f"a folder with one transformer, and the model has {len(models)}")
    (kind,) = models.values()
    if not hasattr(kind, "from_single_file"):
        raise _refusal(config, f"a model that diffusers reads from a single file, and {kind.__name__} is none")


def load_gguf(model_class: type[Any], config: DiffusionStageConfig, folder: Path, dtype: Any) -> Any:
    """Load a model of `folder`'s configuration with the weights of the stage's GGUF file, computing in `dtype`.

    Raises `CheckpointError` for a file that is broken or of another model.
    """
    from diffusers import GGUFQuantizationConfig

    try:
        return model_class.from_single_file(
            config.quantization,
            config=str(folder.parent),
            subfolder=folder.name,
            quantization_config=GGUFQuantizationConfig(compute_dtype=dtype),
            dtype=dtype,
            local_files_only=True,
        )
    except (OSError, ValueError, KeyError, NotImplementedError, RuntimeError) as error:
        # What the file lacks stays without data, and cannot be moved.
        lacks = isinstance(error, NotImplementedError)
        why = f"it lacks weights of {model_class.__name__}" if lacks else f"{type(error).__name__}: {error}"
        raise CheckpointError(
            f"cannot read `{config.quantization}`: {why}",
            hint=f"name a GGUF file of the model in {folder.parent}",
        ) from error


def reshape_weights(pipeline: Any, config: DiffusionStageConfig) -> WeightForms:
    """Follow the stage's keys for one loaded pipeline. Raises `UsageError` if they change nothing in it."""
    import torch

    models = list(denoisers(pipeline))
    before = sum(map(_whole_bytes if reads_gguf(config) else weight_bytes, models))
    if config.quantization != "none":
        for model in models if not reads_gguf(config) else ():
            _quantize(model, config.quantization)
        if sum(map(weight_bytes, models)) == before:
            size = f" of at least {_MIN_FLOAT8_FEATURES} features" if config.quantization == "float8_dynamic" else ""
            raise _refusal(config, f"a transformer with linear layers{size}, and the pipeline has none")
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


def _quantize(model: Any, quantization: str) -> None:
    """Quantize the linear layers of a model in place."""
    import torch

    from omni_cli.backends.execution.modes import repeated_blocks

    if quantization in _TORCHAO:
        torchao = importlib.import_module("torchao.quantization")
        # It would have torch.compile try out variants of every kernel of the process, which takes minutes.
        keys: dict[str, Any] = {"set_inductor_config": False}
        chosen: dict[str, Any] = {}
        if quantization == "float8_dynamic":
            blocks = repeated_blocks(model) or [model]
            compiled = {module for block in blocks for module in block.modules()}
            chosen["filter_fn"] = lambda module, path: module in compiled and has_many_rows(module, path)
            if model.dtype == torch.bfloat16:  # the only type that it scales by row
                keys["granularity"] = torchao.PerRow()
        torchao.quantize_(model, getattr(torchao, _TORCHAO[quantization])(**keys), **chosen)
        return
    kind, options = _BITSANDBYTES[quantization]
    make = getattr(importlib.import_module("bitsandbytes.nn"), kind)
    make = _moving_whole(make) if kind == "Linear8bitLt" else make
    for path, module in [pair for pair in model.named_modules() if type(pair[1]) is torch.nn.Linear]:
        types = {"compute_dtype": module.weight.dtype} if kind == "Linear4bit" else {}
        layer = make(module.in_features, module.out_features, device="meta", **types, **options)
        layer.weight = type(layer.weight)(module.weight.data, requires_grad=False, **vars(layer.weight))
        layer.bias = module.bias
        # Moving it quantizes it, on the host as on a device.
        model.set_submodule(path, layer.to(module.weight.device))


def has_many_rows(module: Any, path: str) -> bool:
    """Return True for a large linear layer of a denoiser's blocks that sees the rows of an image or a video."""
    if type(module).__name__ != "Linear" or _FEW_ROWS.search(path):
        return False
    return bool(min(module.in_features, module.out_features) >= _MIN_FLOAT8_FEATURES)


def _moving_whole(kind: Any) -> Any:
    """Return bitsandbytes' Linear8bitLt with scales that follow its weight to another device.

    It moves them only if it is moved itself, not with the model that it is part of.
    """

    class Linear8bit(kind):
        def _apply(self, fn: Any, recurse: bool = True) -> Any:
            super()._apply(fn, recurse)
            for kept in (self.weight, self.state):  # the weight until the first call, which moves them to the state
                if kept.CB is not None:
                    kept.CB, kept.SCB = self.weight.data, fn(kept.SCB)
            return self

    return Linear8bit


class WeightForms:
    """The forms in effect, read from the pipeline's weights."""

    def __init__(self, pipeline: Any, config: DiffusionStageConfig, loaded_bytes: int) -> None:
        """`loaded_bytes` is the size of the denoiser's weights before they were quantized."""
        import torch

        self._models = list(denoisers(pipeline))
        self._config = config
        self._loaded_bytes = loaded_bytes
        parts = [part for part in pipeline.components.values() if isinstance(part, torch.nn.Module)]
        self.convolutions = [module for part in parts for module in part.modules() if type(module) in _formats(torch)]

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

        counters: dict[str, float] = {}
        if self._config.quantization != "none":
            counters = {"loaded_weight_bytes": self._loaded_bytes, "weight_bytes": sum(map(weight_bytes, self._models))}
        if self._config.channels_last:
            counters["channels_last_convolutions"] = sum(
                module.weight.is_contiguous(memory_format=_formats(torch)[type(module)]) for module in self.convolutions
            )
        return counters


def weight_bytes(model: Any) -> int:
    """Return the size of a model's weights, in the form that they have in memory."""
    return sum(map(_stored_bytes, model.parameters()))


def _stored_bytes(weight: Any) -> int:
    if hasattr(weight, "__tensor_flatten__"):
        names, _ = weight.__tensor_flatten__()
        return sum(_stored_bytes(getattr(weight, name)) for name in names)
    # bitsandbytes keeps its scales beside a weight.
    scales = (getattr(weight, "SCB", None), getattr(getattr(weight, "quant_state", None), "absmax", None))
    return int(weight.nbytes) + sum(int(scale.nbytes) for scale in scales if scale is not None)


def _whole_bytes(model: Any) -> int:
    """Return the size of a model's weights that a GGUF file has quantized, as the model's type would have them."""
    shapes = (getattr(weight, "quant_shape", weight.shape) for weight in model.parameters())
    return sum(map(math.prod, shapes)) * int(model.dtype.itemsize)


def _formats(torch: Any) -> dict[type[Any], Any]:
    return {torch.nn.Conv2d: torch.channels_last, torch.nn.Conv3d: torch.channels_last_3d}


def _refusal(config: DiffusionStageConfig, needed: str, hint: str | None = None) -> UsageError:
    return UsageError(
        f"stage `{config.name}`: `quantization: {config.quantization}` needs {needed}",
        hint=hint or f"--set {config.name}.quantization=none",
    )


def check_lora(config: DiffusionStageConfig, pipeline: Any) -> None:
    """Raise `UsageError` for adapters without PEFT, or of a pipeline (or its class) that takes none."""
    if config.lora and importlib.util.find_spec("peft") is None:
        hint = "install it: `pip install 'omni-cli[lora]'`"
        raise UsageError(
            f"stage `{config.name}` cannot use LoRA adapters: they need peft, which is not installed", hint=hint
        )
    if config.lora and not hasattr(pipeline, "load_lora_weights"):
        name = getattr(pipeline, "__name__", type(pipeline).__name__)
        raise UsageError(
            f"stage `{config.name}` takes no LoRA adapters: diffusers has none for {name}",
            hint=f"remove `lora` from stage `{config.name}`",
        )


class PipelineAdapters:
    """The adapters of one pipeline, of which `use` chooses that of the next call."""

    def __init__(self, pipeline: Any, config: DiffusionStageConfig) -> None:
        """Load all of them. Raises `UsageError` for one that the pipeline cannot use as a whole."""
        check_lora(config, pipeline)
        self._pipeline = pipeline
        self._adapters = {adapter.name: adapter for adapter in config.adapters}
        for adapter in config.adapters:
            _load(pipeline, adapter)
        self._used: str | None = None
        if self._adapters:
            pipeline.disable_lora()

    @property
    def effective(self) -> dict[str, object]:
        return {"lora": {name: adapter.source for name, adapter in self._adapters.items()}} if self._adapters else {}

    def use(self, name: str | None) -> bool:
        """Switch to an adapter, None for the base model; return True if another one was in use."""
        if name == self._used:
            return False
        if name is None:
            self._pipeline.disable_lora()
        else:
            self._pipeline.enable_lora()
            adapter = self._adapters[name]
            self._pipeline.set_adapters([adapter.module_name], [1.0 if adapter.scale is None else adapter.scale])
        self._used = name
        return True


def _load(pipeline: Any, adapter: Adapter) -> None:
    second = adapter.path / SECOND_DENOISER
    if second.is_dir() and getattr(pipeline, SECOND_DENOISER, None) is None:
        raise unusable(adapter, f"the pipeline has no `{SECOND_DENOISER}`, for which it has weights")
    num_given = 0
    try:
        if not second.is_dir() or any(adapter.path.glob("*.safetensors")):
            num_given += _load_part(pipeline, adapter, adapter.path)
        if second.is_dir():
            num_given += _load_part(pipeline, adapter, second, load_into_transformer_2=True)
    except MemoryError:
        raise
    except Exception as error:  # whatever the libraries raise for an adapter of another model or format
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise unusable(adapter, " ".join(lines[:2]) or type(error).__name__) from error
    # diffusers only logs which weights it leaves out, and that there is no module for any.
    num_used = sum(_count(model, adapter.module_name) for model in pipeline.components.values())
    if num_used < num_given:
        raise unusable(adapter, f"the pipeline has no place for {num_given - num_used} of its {num_given} weights")


def _load_part(pipeline: Any, adapter: Adapter, path: Path, **options: bool) -> int:
    """Load a file of an adapter and return how many matrices it has."""
    weights = pipeline.lora_state_dict(str(path))
    pipeline.load_lora_weights(str(path), adapter_name=adapter.module_name, **options)
    return sum(weight.ndim > 1 for weight in (weights[0] if isinstance(weights, tuple) else weights).values())


def _count(model: Any, name: str) -> int:
    parameters = model.named_parameters() if hasattr(model, "named_parameters") else ()
    return sum(f".{name}." in f"{own}." and weight.ndim > 1 for own, weight in parameters)
