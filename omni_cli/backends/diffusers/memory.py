"""A pipeline's memory on its device: weights and their types, how the VAE decodes, cached prompts."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

from omni_cli.backends.diffusers.parallel import Parts
from omni_cli.backends.diffusers.requests import freeze
from omni_cli.backends.diffusers.weights import check_quantization, reshape_weights
from omni_cli.config.schema import DiffusionStageConfig
from omni_cli.core.errors import StageError
from omni_cli.core.text import suggest

_TILED_METHODS = ("tiled_decode", "_tiled_decode")
_VAE_SWITCHES = {"enable_vae_tiling": "tiling", "enable_vae_slicing": "slicing"}


def check_accelerator(config: DiffusionStageConfig, device: str) -> None:
    """Raise `StageError` or `UsageError` for graphs, offload or quantization that this machine cannot follow."""
    check_quantization(config, device)
    if config.execution in ("cudagraph", "compile_cudagraph"):
        from omni_cli.backends.execution.modes import require_cuda

        require_cuda(stage=config.name, device=device, execution=config.execution)
    if config.offload != "none" and device == "cpu":
        raise StageError(
            f"stage `{config.name}`: `offload: {config.offload}` moves weights between a GPU and the host, and the "
            "stage runs on the CPU",
            stage=config.name,
            hint=f"--set {config.name}.offload=none",
        )


def check_parts(config: DiffusionStageConfig, parts: Parts) -> None:
    """Raise `StageError` for keys that name models which the pipeline lacks, before weights are read."""
    named = [("torch_dtype", name) for name in config.torch_dtype]
    named += [("exclude_modules", name) for name in config.exclude_modules or ()]
    for key, name in named:
        if name not in parts:
            raise StageError(
                f"stage `{config.name}`: `{key}` names `{name}`, and the pipeline loads no such model",
                stage=config.name,
                hint=suggest(name, parts) or f"its models are {', '.join(parts)}",
            )


class PipelineMemory:
    """Follows a stage's memory keys for one pipeline, and reports which of them are in effect."""

    def __init__(self, pipeline: Any, config: DiffusionStageConfig, device: str) -> None:
        """Switch the VAE, and quantize, move or offload the weights.

        Raises `StageError` or `UsageError` if a component does not support that.
        """
        self._pipeline = pipeline
        self._config = config
        self._device = device
        self.tiled_decodes = 0
        self._switch_vae()
        self._weights = reshape_weights(pipeline, config)
        self._place()

    def _switch_vae(self) -> None:
        vae = getattr(self._pipeline, "vae", None)
        for key, switch in _VAE_SWITCHES.items():
            is_on = getattr(self._config, key)
            if is_on is not None and not hasattr(vae, f"use_{switch}"):
                lack = "the pipeline has no VAE" if vae is None else f"{type(vae).__name__} has no {switch}"
                raise StageError(
                    f"stage `{self._config.name}`: `{key}` cannot be followed: {lack}",
                    stage=self._config.name,
                    hint=f"remove `{key}` from the stage `{self._config.name}`",
                )
            if is_on is not None:
                getattr(vae, f"{'enable' if is_on else 'disable'}_{switch}")()
        self._counted = [(vae, name) for name in _TILED_METHODS if hasattr(vae, name)]
        for _, name in self._counted:
            setattr(vae, name, self._counting(getattr(vae, name)))

    def _counting(self, decode: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(decode)
        def count_calls(*args: object, **kwargs: object) -> object:
            self.tiled_decodes += 1
            return decode(*args, **kwargs)

        return count_calls

    def _place(self) -> None:
        import torch

        pipeline, config = self._pipeline, self._config
        try:
            match config.offload:
                case "none":
                    pipeline.to(self._device)
                case "model":
                    pipeline.enable_model_cpu_offload(device=self._device)
                case "sequential":
                    pipeline.enable_sequential_cpu_offload(device=self._device)
                case "group":
                    kind = config.offload_type or "block_level"
                    pipeline.enable_group_offload(
                        onload_device=torch.device(self._device),
                        offload_type=kind,
                        num_blocks_per_group=(config.num_blocks_per_group or 1) if kind == "block_level" else None,
                        use_stream=copies_ahead(config, self._device),
                        exclude_modules=[*(config.exclude_modules or ()), *_unmovable(pipeline, kind)],
                    )
        except (ValueError, NotImplementedError) as error:
            # The error is that of a model that cannot be offloaded in groups.
            raise StageError(
                f"stage `{config.name}`: `offload: {config.offload}` cannot be followed: {error}",
                stage=config.name,
                hint="name the component in `exclude_modules`, or use another `offload`",
            ) from error

    def close(self) -> None:
        """Restore the VAE's methods and release the pipeline."""
        for vae, name in self._counted:
            vars(vae).pop(name, None)
        self._counted, self._pipeline = [], None

    def to_host(self) -> None:
        """Free the device's memory; an offloaded pipeline has its weights on the host already."""
        if self._config.offload == "none":
            self._pipeline.to("cpu")
        else:
            self.recover()
        empty_cache(self._device)

    def to_device(self) -> None:
        """Move the weights back after `to_host`; an offloaded pipeline moves them itself."""
        if self._config.offload == "none":
            self._pipeline.to(self._device)

    def recover(self) -> None:
        """Take models off the device that a call which failed has left there."""
        if self._config.offload == "model":
            self._pipeline.maybe_free_model_hooks()

    @property
    def effective(self) -> dict[str, object]:
        """The settings in effect, read from the pipeline."""
        vae = getattr(self._pipeline, "vae", None)
        values = {f"vae_{name}": getattr(vae, f"use_{name}", None) for name in _VAE_SWITCHES.values()}
        switches = {name: value for name, value in values.items() if isinstance(value, bool)}
        types = {
            name: str(getattr(self._pipeline, name).dtype).removeprefix("torch.") for name in self._config.torch_dtype
        }
        named = {"torch_dtype": types} if types else {}
        offload = _get_offload(self._pipeline)
        return {**offload, **switches, **named, **self._weights.effective}

    @property
    def counters(self) -> dict[str, float]:
        return {"tiled_decodes": self.tiled_decodes, **self._weights.counters}


def _unmovable(pipeline: Any, offload_type: str) -> list[str]:
    """Autoencoders that diffusers cannot move in groups.

    It moves what is in none of a model's blocks when the model is called as a whole, and an autoencoder's `decode` is
    called instead. So only one that names its parts as blocks, or whose layers are moved one by one, finds its weights
    on the device.
    """
    return [
        name
        for name, model in models(pipeline)
        if hasattr(model, "decode")
        and hasattr(model, "_supports_group_offloading")
        and not (
            model._supports_group_offloading
            and (offload_type == "leaf_level" or getattr(model, "_group_offload_block_modules", None))
        )
    ]


def models(pipeline: Any) -> Iterator[tuple[str, Any]]:
    """Return a pipeline's models with their names."""
    import torch

    return ((name, part) for name, part in pipeline.components.items() if isinstance(part, torch.nn.Module))


def _get_offload(pipeline: Any) -> dict[str, object]:
    """Read an offload, and the models that it leaves on the device, from the hooks on the pipeline's models."""
    from accelerate.hooks import AlignDevicesHook, CpuOffload
    from diffusers.hooks.group_offloading import _is_group_offload_enabled

    found = dict(models(pipeline))
    excluded = [name for name, model in found.items() if not _is_group_offload_enabled(model)]
    if len(excluded) < len(found):
        return {"offload": "group", "exclude_modules": sorted(excluded)}
    for model in found.values():
        hooks = [getattr(module, "_hf_hook", None) for module in model.modules()]
        if any(isinstance(hook, AlignDevicesHook) and hook.offload for hook in hooks):
            return {"offload": "sequential"}
        if any(isinstance(hook, CpuOffload) for hook in hooks):
            return {"offload": "model"}
    return {"offload": "none"}


@contextmanager
def memory_errors(config: DiffusionStageConfig, model: str, device: str) -> Iterator[None]:
    """Make exhausted memory while loading a `StageError` that names the keys that help."""
    import torch

    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        keys = ["dtype=bfloat16", *advise_settings(config, device)]
        raise StageError(
            f"not enough memory on {device} to load {model}",
            stage=config.name,
            hint="use a smaller model, or " + " or ".join(f"`--set {key}`" for key in keys),
            details=str(error),
        ) from error


def advise_settings(config: DiffusionStageConfig, device: str) -> Iterator[str]:
    """Settings that save more of the device's memory than the stage's own, the fastest first."""
    if device == "cpu":
        return
    # On an H200 a stage of 12 GB took 2.0 s resident, 5.7 s in groups with a stream, and 8.8 s by models, which copies
    # unchanged weights back for each output.
    if config.offload in ("none", "model") and config.execution in (None, "eager"):
        yield f"{config.name}.offload=group"
    if config.offload == "none":
        yield f"{config.name}.offload=model"


def copies_ahead(config: DiffusionStageConfig, device: str) -> bool:
    """Return `use_stream`, by default true where diffusers can: on CUDA, with one block per group."""
    if config.use_stream is not None:
        return config.use_stream
    return device.startswith("cuda") and config.num_blocks_per_group in (None, 1)


def empty_cache(device: str) -> None:
    """Return the memory that torch holds on a CUDA device but does not use."""
    if device.startswith("cuda"):
        import torch

        torch.cuda.empty_cache()


def synchronize(device: str) -> None:
    """Wait until a CUDA device has ended its work."""
    if device.startswith("cuda"):
        import torch

        torch.cuda.synchronize(device)


class PromptCache:
    """Replaces a pipeline's `encode_prompt` and caches its results.

    The pipeline still calls `self.encode_prompt(...)` and gets the tensors of the first call, so the image cannot
    change. The key consists of all arguments of the call (prompt, negative prompt, `max_sequence_length`, guidance on
    or off, ...); calls with tensors have none. An entry whose tensors a pipeline changed in place is dropped, and the
    least recently used ones are beyond `max_bytes` on the device.

    It is for offloaded text encoders: one of 15 GiB takes 15 s to an H200 and back, longer than a few steps.
    """

    def __init__(self, encode_prompt: Callable[..., object], max_bytes: int) -> None:
        self._encode_prompt = encode_prompt
        self._signature = inspect.signature(encode_prompt)
        self._max_bytes = max_bytes
        # With the in-place counters of a result's tensors; the least recently used one is first.
        self._entries: dict[Hashable, tuple[object, list[int]]] = {}

    def __call__(self, *args: object, **kwargs: object) -> object:
        key = self._key(args, kwargs)
        result, versions = self._entries.pop(key, (None, [0]))
        if versions != [tensor._version for tensor in _tensors(result)]:
            result = self._encode_prompt(*args, **kwargs)
        if key is not None:
            self._entries[key] = (result, [tensor._version for tensor in _tensors(result)])
        while sum(tensor.nbytes for held, _ in self._entries.values() for tensor in _tensors(held)) > self._max_bytes:
            del self._entries[next(iter(self._entries))]
        return result

    def clear(self) -> None:
        """Drop the embeddings."""
        self._entries.clear()

    def _key(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Hashable | None:
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        # torch's devices and dtypes are not plain values, but their names identify them.
        plain = {n: str(v) if type(v).__name__ in ("device", "dtype") else v for n, v in bound.arguments.items()}
        try:
            return freeze(plain)
        except TypeError:
            return None


def _tensors(result: Any) -> Iterator[Any]:
    """Yield the tensors in a result of `encode_prompt`: one, or nested tuples and lists of them and None."""
    if isinstance(result, tuple | list | dict):
        for item in result.values() if isinstance(result, dict) else result:
            yield from _tensors(item)
    elif hasattr(result, "_version"):
        yield result
