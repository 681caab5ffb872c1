"""A pipeline whose denoiser shares each request with those of other ranks: diffusers' context parallelism."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omni_cli.compat.parallel_on_cpu import one_device_at_least
from omni_cli.config.pipeline_keys import DENOISERS
from omni_cli.config.schema import DiffusionStageConfig
from omni_cli.errors import UsageError
from omni_cli.text import suggest

Parts = Mapping[str, type[Any]]
"""The classes of a pipeline's models, by the names of its components."""

# Attention backends without the sums that ring attention combines.
_WITHOUT_SUMS = frozenset({"native"})
_HOPPER = 9  # the first number of its compute capability


def check_denoiser(config: DiffusionStageConfig, folder: Path, parts: Parts) -> None:
    """Raise `UsageError` for parallel keys that the models in `folder` cannot follow, before weights are read."""
    from diffusers.models.attention_dispatch import AttentionBackendName, _AttentionBackendRegistry

    backend, ranks = config.attention_backend, config.num_ranks
    if backend is None and ranks == 1:
        return
    names = [backend_name.value for backend_name in AttentionBackendName]
    if backend is not None and backend not in names:
        raise _refusal(config, f"diffusers has no attention backend `{backend}`", suggest(backend, names))
    models = denoiser_classes(parts)
    if not models:
        raise _refusal(config, "`attention_backend` and `context_parallel` need a pipeline with a transformer")
    for model in empty_models(folder, models) if backend is not None else ():
        if not _get_backends(model):
            raise _refusal(
                config, f"`attention_backend` has no effect: {type(model).__name__} computes its attention itself"
            )
    if ranks == 1:
        return
    shared = config.context_parallel
    for name, model in models.items():
        if not getattr(model, "_cp_plan", None):
            raise _refusal(
                config,
                f"`context_parallel` cannot be followed: diffusers has no plan to split {model.__name__}",
                "remove `context_parallel`; for several devices start the whole model several times: `--replicas N`",
            )
        heads, degree = model.load_config(folder / name).get("num_attention_heads"), shared.ulysses_degree or 1
        if isinstance(heads, int) and heads % degree and not shared.ulysses_anything:
            raise _refusal(
                config,
                f"`ulysses_degree: {degree}` does not divide the {heads} attention heads of {model.__name__}",
                f"--set {config.name}.context_parallel.ulysses_anything=true",
            )
    used = backend or _AttentionBackendRegistry.get_active_backend()[0].value
    able = sorted(_AttentionBackendRegistry._supports_context_parallel)
    if (shared.ring_degree or 1) > 1:
        able = [name for name in able if name not in _WITHOUT_SUMS]
    if used not in able:
        raise _refusal(
            config,
            f"`context_parallel` cannot be followed with the attention backend `{used}`",
            f"--set {config.name}.attention_backend=NAME, one of {', '.join(able)}",
        )


def _refusal(config: DiffusionStageConfig, why: str, hint: str | None = None) -> UsageError:
    return UsageError(f"stage `{config.name}`: {why}", hint=hint)


@dataclass(frozen=True)
class Rank:
    """One of the processes that run a stage together.

    `join` returns once all have loaded. `agree` turns the decision of rank 0 into that of all; others pass anything.
    """

    number: int
    join: Callable[[], None]
    agree: Callable[[bool], bool]
    meeting_place: Path

    @classmethod
    def alone(cls) -> Rank:
        return cls(0, lambda: None, lambda decision: decision, Path())


def new_meeting_place() -> Path:
    """The file by which ranks find each other."""
    return Path(tempfile.mkdtemp(prefix="ranks-")) / "store"


def start_sharing(pipeline: Any, config: DiffusionStageConfig, rank: Rank, device: str) -> None:
    """Set the denoiser's attention backend, and share its work with the other ranks. Raises `UsageError`."""
    import torch
    from diffusers import ContextParallelConfig

    models = list(denoisers(pipeline))
    try:
        if config.attention_backend is not None:
            use_attention(pipeline, config.attention_backend)
        if config.num_ranks == 1:
            return
        rank.join()
        if device == "cpu":
            torch.set_num_threads(max(1, torch.get_num_threads() // config.num_ranks))
        else:
            torch.cuda.set_device(device)
        torch.distributed.init_process_group(
            "gloo" if device == "cpu" else "nccl",
            init_method=f"file://{rank.meeting_place}",
            rank=rank.number,
            world_size=config.num_ranks,
        )
        for model in models:
            with one_device_at_least():
                model.enable_parallelism(
                    config=ContextParallelConfig(**config.context_parallel.model_dump(exclude_none=True))
                )
    except (ValueError, RuntimeError, ImportError) as error:
        # The error names the package, device or type that a backend needs.
        raise _refusal(config, f"its parallel settings cannot be followed: {error}") from error


def faster_attention(config: DiffusionStageConfig, device: str) -> str | None:
    """Return an attention backend of diffusers that may be faster here than its own, unless the stage names one.

    It is FlashAttention 3, where its package is installed and the device is of the generation that it is written for.
    """
    import torch
    from diffusers.utils import is_flash_attn_3_available

    if config.attention_backend is not None or not device.startswith("cuda") or not is_flash_attn_3_available():
        return None
    return "_flash_3" if torch.cuda.get_device_capability(device)[0] == _HOPPER else None


def use_attention(pipeline: Any, backend: str | None) -> None:
    """Set the denoiser's attention backend, as diffusers for the whole process; None restores diffusers' own."""
    from diffusers.models.attention_dispatch import (
        DIFFUSERS_ATTN_BACKEND,
        AttentionBackendName,
        _AttentionBackendRegistry,
    )

    for model in denoisers(pipeline):
        if backend is None:
            model.reset_attention_backend()
        else:
            model.set_attention_backend(backend)
    if backend is None:  # which diffusers leaves as it is
        _AttentionBackendRegistry.set_active_backend(AttentionBackendName(DIFFUSERS_ATTN_BACKEND))


def stop_sharing() -> None:
    """Leave the group of ranks, if this process is in one."""
    import torch

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def get_sharing(pipeline: Any) -> dict[str, object]:
    """Return the attention backend and degrees in effect, read from the denoiser; empty for one that has no choice."""
    from diffusers.models.attention_dispatch import _AttentionBackendRegistry

    values: dict[str, object] = {}
    others, _ = _AttentionBackendRegistry.get_active_backend()
    for model in denoisers(pipeline):
        if backends := _get_backends(model):
            values["attention_backend"] = ", ".join(sorted({(backend or others).value for backend in backends}))
        shared = getattr(model._parallel_config, "context_parallel_config", None)
        if shared is not None:
            names = ("ulysses_degree", "ring_degree", "ulysses_anything", "ring_anything")
            values["context_parallel"] = {name: getattr(shared, name) for name in names}
    return values


def _get_backends(model: Any) -> set[Any]:
    """Return the attention backends of a model's layers, None for the default; empty if it has no choice."""
    processors = [getattr(module, "processor", None) for module in model.modules()]
    return {
        processor._attention_backend
        for processor in processors
        if processor and hasattr(processor, "_attention_backend")
    }


def empty_models(folder: Path, classes: Mapping[str, type[Any]]) -> Iterator[Any]:
    """Make the models in `folder` from their configurations, without weights and their memory."""
    import torch

    for name, model in classes.items():
        with torch.device("meta"):
            yield model.from_config(model.load_config(folder / name))


def denoiser_classes(parts: Parts) -> dict[str, type[Any]]:
    """Return the classes of the models that run in each step, by the names of their components."""
    from diffusers.models.modeling_utils import ModelMixin

    return {name: parts[name] for name in DENOISERS if issubclass(parts.get(name, object), ModelMixin)}


def denoisers(pipeline: Any) -> Iterator[Any]:
    """Return the models of a pipeline that run in each step."""
    from diffusers.models.modeling_utils import ModelMixin

    models = (getattr(pipeline, name, None) for name in DENOISERS)
    return (model for model in models if isinstance(model, ModelMixin))
