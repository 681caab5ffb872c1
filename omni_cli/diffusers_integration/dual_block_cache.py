"""The cache of the package cache-dit in one denoiser: blocks that are skipped when the first ones changed little."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from omni_cli.config.pipeline_keys import StepCache

# Fields of a profile's cache, by the names of cache-dit's `DBCacheConfig`.
_FIELDS = {"residual_diff_threshold": "threshold"} | {
    name: name
    for name in (
        "Fn_compute_blocks", "Bn_compute_blocks", "max_warmup_steps", "max_cached_steps", "max_continuous_cached_steps",
    )
}  # fmt: skip


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
        self._skippable = {name: len(group) - self._computed for name, group in blocks.items()}
        self._enter: Callable[..., Any] | None = getattr(model, "cache_context", None)
        if max(self._skippable.values()) < 1:
            self.close()
            raise ValueError(f"it has no more than the {self._computed} blocks that are always computed")
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
    def _computed(self) -> int:
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
    def skipped(self) -> int:
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
