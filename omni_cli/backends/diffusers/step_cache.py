"""A cache between denoising steps, of diffusers or cache-dit: switched on, counted, refused where it cannot work."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omni_cli.backends.diffusers.parallel import denoisers
from omni_cli.config.schema import DiffusionStageConfig
from omni_cli.config.stage_keys import CACHE_FIELDS, StepCache
from omni_cli.core.errors import UsageError

_CONFIGURATIONS = {
    "first_block": "FirstBlockCacheConfig",
    "mag": "MagCacheConfig",
    "taylorseer": "TaylorSeerCacheConfig",
    "pyramid_attention_broadcast": "PyramidAttentionBroadcastConfig",
    "faster": "FasterCacheConfig",
}
# These caches ignore which half of guidance is computed.
_FOR_BOTH_HALVES_AT_ONCE = ("pyramid_attention_broadcast", "faster")
# Fields of a profile's cache, by the names of cache-dit's `DBCacheConfig`.
_FIELDS = {"residual_diff_threshold": "threshold"} | {
    name: name
    for name in (
        "Fn_compute_blocks", "Bn_compute_blocks", "max_warmup_steps", "max_cached_steps", "max_continuous_cached_steps",
    )
}  # fmt: skip


def check_package(config: DiffusionStageConfig) -> None:
    """Raise `UsageError` for a cache without its package."""
    if config.cache.method == "cache_dit" and importlib.util.find_spec("cache_dit") is None:
        hint = "install it: `pip install 'omni-cli[cache-dit]'`"
        raise _refusal(config, "it needs cache-dit, which is not installed", hint)


class StepCaches:
    """The cache of each denoiser of a pipeline, and counts of what came out of it.

    `cached_calls` are calls of the denoiser in which at least one of its parts was not computed;
    `cached_module_calls` counts these parts: blocks, or their attention.
    """

    def __init__(self, models: Sequence[Any], config: DiffusionStageConfig, timestep: Callable[[], float]) -> None:
        """Switch the caches on. Raises `UsageError` for a model that cannot have this one."""
        self.cached_calls = self.cached_module_calls = 0
        self._models = models
        self._config = config
        self._timestep = timestep
        self._num_inference_steps = config.num_inference_steps or 1
        self._skipped = 0
        self._dual: dict[Any, DualBlockCache] = {}
        self._restore: list[Callable[[], object]] = []
        self._enable()

    @classmethod
    def of(cls, pipeline: Any, config: DiffusionStageConfig) -> StepCaches:
        """The stage's caches in a loaded pipeline. Raises `UsageError` if it cannot have them."""
        if config.cache.method != "none":
            _check_contexts(config, type(pipeline))
        return cls(list(denoisers(pipeline)), config, lambda: float(pipeline._current_timestep))

    def _enable(self) -> None:
        cache = self._config.cache
        if cache.method != "none" and not self._models:
            raise _refusal(self._config, "the pipeline has no transformer")
        if cache.method == "cache_dit":
            self._enable_dual(cache)
            return
        for model in self._models if cache.method != "none" else ():
            if not hasattr(model, "enable_cache"):
                raise _refusal(self._config, f"diffusers has no caches for {type(model).__name__}")
            configuration = self._configuration(cache)
            try:
                model.enable_cache(configuration)
            except (ValueError, IndexError) as error:
                raise _refusal(self._config, f"{type(model).__name__} cannot have it: {error}") from error
            hooks = [hook for hook in _hooks_in(model) if type(hook).__module__ == type(configuration).__module__]
            if not hooks:
                model.disable_cache()
                raise _refusal(self._config, f"it finds none of its modules in {type(model).__name__}")
            # Some blocks return the text's state, too; diffusers subtracts first from last.
            places = (hook._metadata.return_encoder_hidden_states_index for hook in hooks)
            if cache.method == "first_block" and len({place is not None for place in places}) > 1:
                model.disable_cache()
                raise _refusal(self._config, f"blocks of {type(model).__name__} return different things")
            for hook in hooks:
                self._count(hook)
            self._restore += [model.register_forward_hook(self._note_call).remove, model.disable_cache]

    def _enable_dual(self, cache: StepCache) -> None:
        for model in self._models:
            try:
                self._dual[model] = DualBlockCache(model, cache)
            except (ValueError, AssertionError, ImportError, AttributeError) as error:
                self.close()
                raise _refusal(self._config, f"{type(model).__name__} cannot have it: {error}") from error
            self._restore += [model.register_forward_hook(self._note_call).remove, self._dual[model].close]

    def _configuration(self, cache: StepCache) -> Any:
        """The configuration of diffusers' class for this method."""
        import diffusers
        import torch

        settings = {name: getattr(cache, name) for name in CACHE_FIELDS[cache.method]}
        settings = {name: value for name, value in settings.items() if value is not None}
        match cache.method:
            case "mag":
                settings["num_inference_steps"] = self._num_inference_steps
            case "taylorseer":
                # diffusers' default is bfloat16, whatever the model's type is.
                settings["taylor_factors_dtype"] = torch.float32
            case "pyramid_attention_broadcast" | "faster":
                settings["current_timestep_callback"] = self._timestep
        if cache.method == "faster":
            # diffusers' default, which it logs otherwise.
            settings["attention_weight_callback"] = lambda _: 0.5
        return getattr(diffusers, _CONFIGURATIONS[cache.method])(**settings)

    def _count(self, hook: Any) -> None:
        reference = hook.fn_ref
        answer, compute = reference.forward, reference.original_forward

        def run_block(*args: object, **kwargs: object) -> object:
            self._skipped += 1
            return answer(*args, **kwargs)

        def run_computed(*args: object, **kwargs: object) -> object:
            self._skipped -= 1
            return compute(*args, **kwargs)

        def restore() -> None:
            reference.forward, reference.original_forward = answer, compute

        reference.forward, reference.original_forward = run_block, run_computed
        self._restore.append(restore)

    def _note_call(self, model: Any, *_: object) -> None:
        if model in self._dual:
            self._skipped = self._dual[model].num_skipped
        self.cached_calls += self._skipped > 0
        self.cached_module_calls += self._skipped
        self._skipped = 0

    def start(self, num_inference_steps: int | None) -> None:
        """Forget earlier requests, those included that ended within their steps."""
        if self._config.cache.method == "mag" and num_inference_steps not in (None, self._num_inference_steps):
            assert num_inference_steps is not None
            self.close()
            self._num_inference_steps = num_inference_steps
            self._enable()
        for model in self._models if self._restore and not self._dual else ():
            model._reset_stateful_cache()
        for dual in self._dual.values():
            dual.start()
        self._skipped = 0

    def close(self) -> None:
        """Switch the caches off."""
        while self._restore:
            self._restore.pop(0)()
        self._dual.clear()

    @property
    def effective(self) -> dict[str, object]:
        """The fields of the profile's cache as the denoisers have them; empty without one."""
        settings = self._config.cache.model_dump(exclude_none=True)
        for dual in self._dual.values():
            return {
                "cache": {**settings, **{name: value for name, value in dual.effective.items() if name in settings}}
            }
        methods = {name: method for method, name in _CONFIGURATIONS.items()}
        configurations = (getattr(model, "_cache_config", None) for model in self._models)
        for configuration in filter(None, configurations):
            # Its ratios are for the request's number of steps.
            read = {name: getattr(configuration, name) for name in settings.keys() - {"method", "mag_ratios"}}
            return {"cache": {**settings, **read, "method": methods[type(configuration).__name__]}}
        return {}

    @property
    def counters(self) -> dict[str, float]:
        if not self._restore:
            return {}
        return {"cached_calls": self.cached_calls, "cached_module_calls": self.cached_module_calls}


def _check_contexts(config: DiffusionStageConfig, pipeline_class: type[Any]) -> None:
    """Raise `UsageError` if both halves of guidance would take each other's results, of which nothing else warns.

    Pipelines name the half that they compute, which some caches ignore.
    """
    kinds = [kind for kind in pipeline_class.__mro__ if kind.__module__.startswith("diffusers.")]
    code = "".join(Path(inspect.getfile(kind)).read_text() for kind in kinds)
    if config.cache.method == "cache_dit" and code.count("self.transformer(") == 1:
        return  # both halves in one call
    separates = 'cache_context("uncond"' in code
    if "cache_context(" not in code or (separates and config.cache.method in _FOR_BOTH_HALVES_AT_ONCE):
        why = (
            "computes the halves of guidance one after another" if separates else "does not name the halves of guidance"
        )
        raise _refusal(config, f"{pipeline_class.__name__} {why}")


def _hooks_in(model: Any) -> Iterable[Any]:
    registries = [module._diffusers_hook for module in model.modules() if hasattr(module, "_diffusers_hook")]
    return (hook for registry in registries for hook in registry.hooks.values())


def _refusal(config: DiffusionStageConfig, why: str, hint: str | None = None) -> UsageError:
    return UsageError(
        f"stage `{config.name}`: the cache `{config.cache.method}` cannot be used: {why}",
        hint=hint or f"--set {config.name}.cache.method=none",
    )


class DualBlockCache:
    """cache-dit's DBCache, switched on in a model until `close`.

    Each half of guidance has a cache of its own, by the name that the pipeline gives it, as with diffusers' caches.
    cache-dit itself takes every second call for the other half, which fails for requests without guidance.
    """

    def __init__(self, model: Any, cache: StepCache) -> None:
        """Switch it on. Raises `ValueError` for a model that cannot have it."""
        import cache_dit

        # Before cache-dit looks at it, which gives some models a `forward` of its own.
        self._model, self._forward = model, vars(model).get("forward")
        takes = set(inspect.signature(model.forward).parameters)
        adapter = cache_dit.get_adapter(model)
        if adapter is None:
            raise ValueError("cache-dit does not know its blocks")
        if lacking := takes - set(inspect.signature(model.forward).parameters):
            self._restore()
            names = ", ".join(f"`{name}`" for name in sorted(lacking))
            raise ValueError(f"cache-dit's own code for it is for another version of diffusers and lacks {names}")
        settings = {theirs: value for theirs, ours in _FIELDS.items() if (value := getattr(cache, ours)) is not None}
        order = cache.taylorseer_order
        self._adapter = cache_dit.enable_cache(
            adapter,
            cache_config=cache_dit.DBCacheConfig(**settings, enable_separate_cfg=False),
            calibrator_config=order and cache_dit.TaylorSeerCalibratorConfig(taylorseer_order=order),
        )
        self._contexts = dict(self._manager._cached_context_manager)
        flat = cache_dit.BlockAdapter.flatten
        blocks = dict(zip(flat(self._adapter.unique_blocks_name), flat(self._adapter.blocks), strict=True))
        self._skippable = {name: len(group) - self._num_computed for name, group in blocks.items()}
        self._enter: Callable[..., Any] | None = getattr(model, "cache_context", None)
        if max(self._skippable.values()) < 1:
            self.close()
            raise ValueError(f"it has no more than the {self._num_computed} blocks that are always computed")
        if self._enter is not None:
            model.cache_context = self._half
        self.start()

    @property
    def _manager(self) -> Any:
        return self._adapter.pipe._context_manager

    @property
    def _config(self) -> Any:
        return next(iter(self._contexts.values())).cache_config

    @property
    def _num_computed(self) -> int:
        return int(self._config.Fn_compute_blocks + self._config.Bn_compute_blocks)

    def start(self) -> None:
        """Forget earlier requests."""
        self._halves: dict[str, Mapping[str, Any]] = {}
        self._select("")

    def _select(self, half: str) -> None:
        if half not in self._halves:
            self._halves[half] = {}
            self._manager._cached_context_manager = self._halves[half]
            for context in self._contexts.values():
                self._manager.new_context(**copy.deepcopy(context._init_kwargs))
        self._manager._cached_context_manager = self._halves[half]

    @contextlib.contextmanager
    def _half(self, name: str, **where: Any) -> Iterator[None]:
        assert self._enter is not None
        self._select(name)
        with self._enter(name, **where):
            yield

    @property
    def num_skipped(self) -> int:
        """Number of blocks that the model's latest call did not compute."""
        contexts = self._manager._cached_context_manager.values()
        return sum(
            self._skippable[context.name]
            for context in contexts
            if context.get_current_step() in context.get_cached_steps()
        )

    @property
    def effective(self) -> dict[str, object]:
        """The fields in effect, by their names in a profile."""
        return {ours: getattr(self._config, theirs) for theirs, ours in _FIELDS.items()}

    def close(self) -> None:
        """Switch it off and restore the model."""
        import cache_dit

        self._halves = {}
        self._manager._cached_context_manager = {}
        cache_dit.disable_cache(self._adapter)
        self._restore()

    def _restore(self) -> None:
        for name, own in (("cache_context", None), ("forward", self._forward)):
            vars(self._model).pop(name, None)
            if own is not None:
                vars(self._model)[name] = own
