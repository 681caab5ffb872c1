"""Find every mistake in a profile, in one pass over its data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from omni_cli.config.families import BUILTIN_PREFIX, StageRole, builtins, hint_at_plugins
from omni_cli.config.messages import describe_error, is_misspelt, missing_key, to_path, unknown_key, value_at
from omni_cli.config.roles import find_family, find_roles, find_stage_class
from omni_cli.config.schema import (
    MAX_STAGES,
    RESERVED_STAGE_NAMES,
    SEVERAL_DEVICES,
    STAGE_MODELS,
    EngineConfig,
    StageConfig,
)
from omni_cli.config.stage_keys import CACHE_FIELDS, CACHES_BETWEEN_BLOCKS, Adapter, Backend, has_effect, notes_on
from omni_cli.config.yaml_tree import Tree, TreePath
from omni_cli.core.text import suggest, visible

ModelT = TypeVar("ModelT", bound=BaseModel)
Default = TypeVar("Default")
_GROUP_KEYS = frozenset({"offload_type", "num_blocks_per_group", "use_stream", "exclude_modules"})
# Compiled blocks stay whole while a model is offloaded between its calls.
_GRAPHS = ("cudagraph", "compile_cudagraph")
_IN_PLACE = {(mode, offload) for mode in _GRAPHS for offload in ("model", "sequential", "group")} | {
    ("compile", "sequential"),
    ("compile", "group"),
}


def validate(tree: Tree) -> EngineConfig | None:
    """Return the configuration, or None; mistakes are added to `tree.diagnostics`.

    `tree` may be changed: a stage without a usable `kind` gets the likelier one, so that its other keys are checked.
    """
    if tree.data is None:
        return None
    checker = _Checker(tree)
    checker.run()
    return checker.config if not tree.diagnostics else None


class _Checker:
    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.data: dict[str, object] = tree.data or {}
        self.config: EngineConfig | None = None
        self.models: dict[str, type[StageConfig]] = {}
        self.roles: dict[str, list[StageRole]] = {}

    def run(self) -> None:
        stages = self.data.get("stages")
        if isinstance(stages, dict) and len(stages) > MAX_STAGES:
            # Nothing else is checked: pairwise comparisons would take forever.
            self._add(("stages",), f"{len(stages)} stages; the maximum is {MAX_STAGES}", at_key=True)
            return
        self._refuse_nulls((), self.data)
        self.stages: Mapping[str, Any] = stages if isinstance(stages, dict) else {}
        self._settle_kinds()
        self._check_schema()
        self._check_model()
        for name, stage in self.stages.items():
            self._check_stage(name, stage)
        self._check_inputs()

    def _add(self, path: TreePath, message: str, hint: str | None = None, *, at_key: bool = False) -> None:
        if path in self.tree.faulty:
            return
        self.tree.faulty.add(path)
        self.tree.refuse(self.tree.key_location(path) if at_key else self.tree.location(path), message, hint)

    def _add_stage_name(self, name: str, message: str, hint: str | None) -> None:
        """Add a mistake in a stage's name; the stage's content is still checked."""
        self.tree.refuse(self.tree.key_location(("stages", name)), message, hint)

    def _refuse_nulls(self, path: TreePath, node: object) -> None:
        is_argument = path[2:3] == ("call",) and len(path) > 3  # null is a value that a pipeline's call can take
        if node is None and not is_argument:
            hint = "give it a value, or omit the key for the default"
            self._add(path, f"`{visible(str(path[-1]), 80)}` has no value", hint, at_key=True)
        children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, child in children:
            self._refuse_nulls((*path, key), child)

    def _settle_kinds(self) -> None:
        """Report stages without a usable `kind` and set the kind whose keys they have."""
        for name, stage in self.stages.items():
            if not isinstance(stage, dict) or stage.get("kind") in list(STAGE_MODELS):
                continue
            path: TreePath = ("stages", name)
            if "kind" in stage:
                kind = stage["kind"]
                choices = ", ".join(STAGE_MODELS)
                near = suggest(kind, STAGE_MODELS) if isinstance(kind, str) else None
                self._add((*path, "kind"), f"invalid value for `kind`: expected one of {choices}", near)
            else:
                self._add((*path, "kind"), *missing_key(path, "kind"), at_key=True)
            stage["kind"] = _likely_kind(stage)

    def _check_schema(self) -> None:
        family = find_family(self.data.get("model"), self.stages)
        stages = {}
        for name, stage in self.stages.items():
            if isinstance(stage, dict):
                self.roles[name] = find_roles(family, name, stage)
                self.models[name] = find_stage_class(self.roles[name], stage)
                stages[name] = self._validate_model(self.models[name], stage, "stages", name)
        # A stage whose mistakes are already reported is validated unchanged; only messages about its name are new.
        data = self.data
        if self.stages:
            data = {**data, "stages": {name: stages.get(name) or stage for name, stage in self.stages.items()}}
        self.config = self._validate_model(EngineConfig, data)

    def _validate_model(self, model: type[ModelT], data: object, *path: str) -> ModelT | None:
        try:
            return model.model_validate(data)
        except ValidationError as error:
            for detail in error.errors(include_url=False, include_input=False):
                # A stage was checked by its own class, so the generic class's messages about its keys are duplicates.
                if path or detail["loc"][0] != "stages" or len(detail["loc"]) < 3 or detail["loc"][2] == "[key]":
                    self._report({**detail, "loc": (*path, *detail["loc"])})
            return None

    def _report(self, detail: Mapping[str, Any]) -> None:
        path = to_path(detail["loc"], self.data)
        if detail["loc"][-1] == "constrained-str" and isinstance(value_at(self.data, path), list):
            return  # `stop` is a list: only mistakes inside it count
        if any(path[:end] in self.tree.faulty for end in range(1, len(path) + 1)):
            return
        if detail["type"] == "missing":
            key = detail["loc"][-1]
            if path or not is_misspelt(key, self.data):
                self._add((*path, key), *missing_key(path, key), at_key=True)
        elif detail["type"] == "extra_forbidden":
            self._add(path, *unknown_key(path, self.data, self.models), at_key=True)
        elif path[2:] == ("backend",):
            self._report_backend(path)
        elif detail["loc"][-1] == "[key]" and len(path) == 2:
            self._add_stage_name(str(path[1]), *describe_error(detail, path, self.tree, self.models))
        else:
            self._add(path, *describe_error(detail, path, self.tree, self.models), at_key=detail["loc"][-1] == "[key]")

    def _report_backend(self, path: TreePath) -> None:
        stage = self.stages[str(path[1])]
        backend = stage["backend"]
        if stage["kind"] == "ar" and backend == "diffusers":
            self._add(path, "backend `diffusers` cannot run a stage of kind `ar`", "write `backend: vllm`")
            return
        choices = ["vllm"] if stage["kind"] == "ar" else ["vllm", "diffusers"]
        hint = suggest(backend, choices) if isinstance(backend, str) else None
        self._add(path, f"invalid value for `backend`: expected one of {', '.join(choices)}", hint)

    def _check_model(self) -> None:
        model = self.data.get("model")
        if not isinstance(model, str) or not model.startswith(BUILTIN_PREFIX):
            return
        name = model.removeprefix(BUILTIN_PREFIX)
        if name not in builtins():
            known = ", ".join(builtins())
            message = f"unknown builtin model `{visible(name, 80)}`: expected one of {known}"
            self._add(("model",), message, suggest(name, builtins()) or hint_at_plugins(None))

    def _check_stage(self, name: str, stage: Any) -> None:
        path: TreePath = ("stages", name)
        if name in RESERVED_STAGE_NAMES:
            hint = "`--stage` and `--vary` reserve this word"
            self._add_stage_name(name, f"a stage cannot be named `{name}`", hint)
        if not isinstance(stage, dict):
            return
        self._check_backends(path, stage)
        self._check_lora(path, stage)
        if stage["kind"] == "ar":
            self._check_ar(path, stage)
            self._check_hearing(path, stage, self.roles[name])
        else:
            self._check_diffusion(path, stage)
        keys, sizes = stage, ("tensor_parallel_size", "pipeline_parallel_size")
        if stage["kind"] == "diffusion":
            keys, sizes = _mapping(stage, "context_parallel"), ("ulysses_degree", "ring_degree")
        ranks = _integer(keys, sizes[0], 1) * _integer(keys, sizes[1], 1)
        devices = stage.get("devices")
        if isinstance(devices, str) and devices and 1 < ranks != devices.count(",") + 1:
            self._add(
                (*path, "devices"),
                f"`devices` names {devices.count(',') + 1}, but the stage has {ranks} ranks",
                f"ranks are {sizes[0]} times {sizes[1]}",
            )

    def _check_lora(self, path: TreePath, stage: Mapping[str, object]) -> None:
        adapters = _mapping(stage, "lora")
        is_pipeline = stage["kind"] == "diffusion" and stage.get("backend") != "vllm"
        if adapters and stage["kind"] == "diffusion" and not is_pipeline:
            message = "`lora` has no effect in a diffusion stage with `backend: vllm`"
            self._add(
                (*path, "lora"), message, "move it to a stage that vLLM or a pipeline of diffusers runs", at_key=True
            )
        for name, source in adapters.items() if not is_pipeline else ():
            if isinstance(source, str) and Adapter(name, source).scale is not None:
                message = "an adapter's scale is for pipelines of diffusers; vLLM takes it from adapter_config.json"
                self._add((*path, "lora", name), message, f"write `{Adapter(name, source).path}`")
        if adapters and is_pipeline and "cudagraph" in str(stage.get("execution")):
            message = f"`execution: {visible(str(stage['execution']), 80)}` cannot be used with `lora`"
            self._add((*path, "execution"), message, "write `eager` or `compile`: a CUDA graph contains its adapter")

    def _check_ar(self, path: TreePath, stage: Mapping[str, object]) -> None:
        if stage.get("kv_cache_memory_bytes") is not None and stage.get("gpu_memory_utilization") is not None:
            message = "`gpu_memory_utilization` has no effect with `kv_cache_memory_bytes`"
            hint = "remove it, or write `kv_cache_memory_bytes: null`"
            self._add((*path, "gpu_memory_utilization"), message, hint, at_key=True)
        sampling = stage.get("sampling")
        if isinstance(sampling, dict):
            low, high = _integer(sampling, "min_tokens", 0), _integer(sampling, "max_tokens", None)
            if high is not None and low > high:
                self._add((*path, "sampling", "min_tokens"), f"`min_tokens` is above `max_tokens` ({high})")
        length, tokens = _integer(stage, "max_model_len", None), _integer(stage, "max_num_batched_tokens", None)
        requests = _integer(stage, "max_num_seqs", 1)
        if tokens is None:
            return
        path = (*path, "max_num_batched_tokens")
        if tokens < requests:
            self._add(path, f"`max_num_batched_tokens` is below `max_num_seqs` ({requests})")
        elif length is not None and tokens < length and stage.get("enable_chunked_prefill") is False:
            message = f"`max_num_batched_tokens` is below `max_model_len` ({length}) without chunked prefill"
            self._add(path, message, "raise it, or set `enable_chunked_prefill: true`")

    def _check_hearing(self, path: TreePath, stage: Mapping[str, object], roles: Sequence[StageRole]) -> None:
        """Reject keys that have no effect on a transcript, or only on one."""
        if "aligner" in stage and roles and not any(role.transcribes for role in roles):
            self._add((*path, "aligner"), "`aligner` has no effect in a stage that does not transcribe", at_key=True)
        if not roles or any(role.chats or not role.transcribes for role in roles):
            return
        for key in ("stop", "include_stop_str_in_output"):
            if key in _mapping(stage, "sampling"):
                message = f"`{key}` has no effect on a transcript, which is that of the whole sound"
                self._add((*path, "sampling", key), message, "remove it", at_key=True)

    def _check_backends(self, path: TreePath, stage: Mapping[str, Any]) -> None:
        """Reject keys that have no effect with the stage's backend."""
        keys = self.models[str(path[1])].model_fields
        backend = stage.get("backend", keys["backend"].default)
        for key in keys.keys() & stage.keys() if backend in get_args(Backend) else ():
            notes = notes_on(keys[key])
            if not has_effect(keys[key], backend):
                reason = f": {notes.reason}" if notes.reason else ""
                message = f"`{key}` has no effect with `backend: {backend}`{reason}"
                self._add((*path, key), message, notes.hint, at_key=True)
            elif isinstance(value := stage[key], str) and value not in notes.values.get(backend, (value,)):
                message = f"`{key}: {visible(value, 80)}` has no effect with `backend: {backend}`"
                self._add((*path, key), message, f"expected one of {', '.join(notes.values[backend])}")

    def _check_diffusion(self, path: TreePath, stage: Mapping[str, object]) -> None:
        self._check_offload(path, stage)
        self._check_context_parallel(path, stage)
        self._check_cache(path, stage)
        for key in ("tensor_parallel_size", "pipeline_parallel_size"):
            if stage.get("backend") == "vllm" and _integer(stage, key, 1) > 1:
                message = f"`{key}` cannot be {stage[key]}: a diffusion stage on vLLM runs on one device"
                self._add((*path, key), message, SEVERAL_DEVICES)
        call = stage.get("call")
        for name in call if isinstance(call, dict) else ():
            if name == "trust_remote_code":
                unknown = unknown_key((*path, "call", name), self.data, self.models)
                self._add((*path, "call", name), *unknown, at_key=True)
            if name in self.models[str(path[1])].model_fields:
                message = f"`{name}` is a key of the stage itself, not of `call`"
                self._add((*path, "call", name), message, "move it out of `call`", at_key=True)

    def _check_context_parallel(self, path: TreePath, stage: Mapping[str, object]) -> None:
        keys, path = _mapping(stage, "context_parallel"), (*path, "context_parallel")
        degrees = {name: _integer(keys, f"{name}_degree", 1) for name in ("ulysses", "ring")}
        if keys and max(degrees.values()) < 2:
            message = "`context_parallel` has no effect without a degree above 1"
            self._add(path, message, "write `ulysses_degree: 2` or `ring_degree: 2` in it", at_key=True)
            return
        for name, other in (("ulysses", "ring"), ("ring", "ulysses")):
            if keys.get(f"{name}_anything") is True and (degrees[name] < 2 or degrees[other] > 1):
                message = f"`{name}_anything` needs `{name}_degree` above 1 and `{other}_degree` 1"
                self._add((*path, f"{name}_anything"), message)
        if keys and degrees["ring"] < 2 and "convert_to_fp32" in keys:
            message = "`convert_to_fp32` has no effect without `ring_degree` above 1"
            self._add((*path, "convert_to_fp32"), message, at_key=True)
        for key, value in (("offload", "none"), ("execution", "eager")) if keys else ():
            if stage.get(key) not in (None, value):
                message = f"`{key}: {visible(str(stage[key]), 80)}` cannot be used with `context_parallel`"
                self._add((*path[:-1], key), message, f"write `{key}: {value}`, or remove `context_parallel`")

    def _check_cache(self, path: TreePath, stage: Mapping[str, object]) -> None:
        keys, path = _mapping(stage, "cache"), (*path, "cache")
        method = keys.get("method", "none")
        if not isinstance(method, str) or method not in CACHE_FIELDS:
            return  # reported by the schema
        for key in keys.keys() - {"method", *CACHE_FIELDS[method]}:
            with_it = [f"`{name}`" for name, fields in CACHE_FIELDS.items() if key in fields]
            if with_it:
                message = f"`{key}` has no effect with `method: {method}`"
                self._add((*path, key), message, f"it belongs to {', '.join(with_it)}", at_key=True)
        if method == "mag" and "mag_ratios" not in keys:
            message = "`method: mag` needs `mag_ratios`, which differ between checkpoints"
            self._add((*path, "method"), message, "diffusers' `MagCacheConfig(calibrate=True)` prints them")
        if method == "none":
            return
        execution = stage.get("execution", "eager")
        if execution in _GRAPHS or (execution == "compile" and method not in CACHES_BETWEEN_BLOCKS):
            message = f"`execution: {execution}` cannot be used with the cache `{method}`, which decides in each step"
            self._add((*path[:-1], "execution"), message, "write `execution: eager`, or remove `cache`")
        if _mapping(stage, "context_parallel"):
            message = "`cache` cannot be used with `context_parallel`: ranks would decide differently"
            self._add(path, message, "remove one of them", at_key=True)
        if stage.get("batching") == "stacked":
            message = "`batching: stacked` cannot be used with `cache`: requests would decide for each other"
            self._add((*path[:-1], "batching"), message, "write `batching: exact`, or remove `cache`")

    def _check_offload(self, path: TreePath, stage: Mapping[str, object]) -> None:
        offload = stage.get("offload", "none")
        for key in _GROUP_KEYS & stage.keys() if offload != "group" else ():
            message = f"`{key}` has no effect without `offload: group`"
            self._add((*path, key), message, f"write `offload: group`, or remove `{key}`", at_key=True)
        if stage.get("offload_type") == "leaf_level" and "num_blocks_per_group" in stage:
            message = "`num_blocks_per_group` has no effect with `offload_type: leaf_level`"
            self._add((*path, "num_blocks_per_group"), message, "remove one of them", at_key=True)
        if offload in ("sequential", "group") and stage.get("quantization", "none") != "none":
            message = f"`offload: {offload}` cannot move quantized weights"
            self._add((*path, "offload"), message, "write `offload: model`, or remove `quantization`")
        if (stage.get("execution"), offload) in _IN_PLACE:
            message = f"`offload: {offload}` moves weights that `execution: {stage['execution']}` needs in location"
            self._add((*path, "offload"), message, "write `execution: eager` or `offload: none`")

    def _check_inputs(self) -> None:
        """Report each input that names no stage, the stage itself or a later one, so that there are no cycles.

        Every stage has one but the first, which takes the request itself.
        """
        names = list(self.stages)
        order = {name: position for position, name in enumerate(names)}
        for name, stage in self.stages.items():
            path: TreePath = ("stages", name, "input")
            if order[name] and isinstance(stage, dict) and "input" not in stage:
                message = f"stage `{visible(name, 80)}` has no `input`, and is not the first stage"
                hint = f"add `input: {visible(names[order[name] - 1], 80)}`"
                self._add(path[:2], message, hint, at_key=True)
            source = stage.get("input") if isinstance(stage, dict) else None
            if not isinstance(source, str):
                continue
            if source == name:
                self._add(path, f"stage `{name}` takes its own output as its input")
            elif source not in self.stages:
                message = f"`input` of stage `{visible(name, 80)}` names no stage: `{visible(source, 80)}`"
                others = [other for other in self.stages if other != name]
                known = f"stages are {', '.join(visible(other, 80) for other in others)}" if others else None
                self._add(path, message, suggest(source, others) or known)
            elif order[source] > order[name]:
                hint = f"write stage `{source}` before stage `{name}`"
                self._add(path, f"stage `{name}` takes its input from a later stage, `{source}`", hint)


def _likely_kind(stage: Mapping[str, object]) -> str:
    kind = stage.get("kind")
    if isinstance(kind, str) and (near := suggest(kind, STAGE_MODELS)):
        return "ar" if "`ar`" in near else "diffusion"
    return max(STAGE_MODELS, key=lambda name: len(STAGE_MODELS[name].model_fields.keys() & stage.keys()))


def _mapping(mapping: Mapping[str, object], key: str) -> dict[str, object]:
    value = mapping.get(key)
    return value if isinstance(value, dict) else {}


def _integer(mapping: Mapping[str, object], key: str, default: Default) -> int | Default:
    value = mapping.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else default
