"""Exceptions as the failures that a process reports; messages of libraries in our terms.

Messages of vLLM, torch and diffusers name their own options; the table has the equivalent `--set`, for loading and for
requests. Imports no engine.
"""

from __future__ import annotations

import math
import re
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from omni_cli.config.families import plugin_place
from omni_cli.config.schema import StageConfig
from omni_cli.config.stage_keys import has_effect
from omni_cli.core.files import known_failure
from omni_cli.stage.messages import Failure
from omni_cli.stage.payloads import PayloadError

_GIB = 1 << 30
_MIN_CACHE_BYTES = 64 << 20
# Memory left free for the rest of the process.
_SPARE_SHARE = 0.8
# A key of the profile, not of a stage.
DTYPE = "dtype"

Values = Mapping[str, str]
Settings = Iterable[tuple[str, object]]


@dataclass(frozen=True)
class Translation:
    """`message` is formatted with the groups of `pattern` and the stage's name; `settings` returns keys with values
    that fit, and `advice` is further help."""

    pattern: str
    message: str
    settings: Callable[[Values], Settings]
    advice: str | None = None


def _cache_bytes(free_gib: float) -> int:
    return max(_MIN_CACHE_BYTES, int(free_gib * _SPARE_SHARE * _GIB) >> 20 << 20)


def _smaller_share(values: Values) -> Settings:
    free, total = float(values["free"]), float(values["total"])
    yield "gpu_memory_utilization", max(0.01, math.floor(_SPARE_SHARE * free / total * 100) / 100)


def _larger_share(values: Values) -> Settings:
    share = float(values["allowed"]) / float(values["total"])
    yield "gpu_memory_utilization", min(0.95, math.ceil(150 * share) / 100)
    yield "max_num_seqs", 1


def _cache_or_smaller_share(values: Values) -> Settings:
    yield "kv_cache_memory_bytes", _cache_bytes(min(2.0, float(values["free"]) / 2))
    yield from _smaller_share(values)


def _shorter_or_more_cache(values: Values) -> Settings:
    if values.get("length"):
        yield "max_model_len", values["length"]
    yield "kv_cache_memory_bytes", math.ceil(float(values["needed"]) * 1.05 * _GIB)


def _less_at_once(_values: Values) -> Settings:
    yield from (("gpu_memory_utilization", 0.8), ("devices", "'1'"), ("max_num_seqs", 1))
    yield DTYPE, "bfloat16"


def _longest(values: Values) -> Settings:
    known = [int(value) for name in ("derived", "named") if (value := values.get(name))]
    yield "max_model_len", max(known)


def _table() -> Iterable[Translation]:
    """Messages about memory."""
    sizes = r"\((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\)"
    share = r"utilization \((?P<share>[\d.]+), (?P<wanted>[\d.]+) GiB\)"
    yield Translation(
        rf"Available memory on node \d+ {sizes} on startup is less than desired CPU memory {share}",
        "vLLM would reserve {wanted} GiB, and {free} GiB of {total} GiB are free",
        _cache_or_smaller_share,
    )
    yield Translation(
        rf"Free memory on device \S+ {sizes} on startup is less than desired GPU memory {share}",
        "vLLM would reserve {wanted} GiB of the device, and {free} GiB of {total} GiB are free",
        _smaller_share,
    )
    yield Translation(
        rf"Available memory on node \d+ {sizes} on kv cache allocation is less than requested memory for kv "
        r"\((?P<wanted>[\d.]+) GiB\)",
        "the KV cache would take {wanted} GiB, and {free} GiB of {total} GiB are free",
        lambda values: [("kv_cache_memory_bytes", _cache_bytes(float(values["free"])))],
    )
    yield Translation(
        r"No available memory for the cache blocks",
        "no memory is left for the KV cache",
        lambda values: [("kv_cache_memory_bytes", _GIB), ("gpu_memory_utilization", 0.95)],
    )
    yield Translation(
        r"CUDA out of memory\. Tried to allocate (?P<size>[\d.]+ \w+).* total capacity of (?P<total>[\d.]+) GiB"
        r".* (?P<allowed>[\d.]+) GiB allowed",
        "out of memory in the stage's share of the device, {allowed} GiB: {size} more could not be allocated",
        _larger_share,
    )
    yield Translation(
        r"CUDA out of memory\. Tried to allocate (?P<size>[\d.]+ \w+)",
        "out of memory on the device: {size} more could not be allocated",
        _less_at_once,
    )
    # torch's host allocator.
    yield Translation(
        r"DefaultCPUAllocator: can't allocate memory: you tried to allocate (?P<size>\d+) bytes",
        "out of memory on the host: {size} bytes more could not be allocated",
        lambda values: [item for item in _less_at_once(values) if item[0] not in ("gpu_memory_utilization", "devices")],
    )
    # diffusers and accelerate suggest their own methods.
    yield Translation(
        r"enable_(model|sequential|group)_(cpu_)?offload",
        "the pipeline does not fit on the device",
        lambda values: [("offload", "model"), *_less_at_once(values)],
    )


def _table_of_sizes() -> Iterable[Translation]:
    """Messages about lengths, batches and files while loading."""
    yield Translation(
        r"at least one request with the model's max seq len \((?P<asked>\d+)\), \((?P<needed>[\d.]+) GiB KV cache "
        r"is needed, which is larger than the available KV cache memory \((?P<free>[\d.]+) GiB\)"
        r"(\. Based on the available memory, the estimated maximum model length is (?P<length>\d+))?",
        "one request of {asked} tokens needs {needed} GiB of KV cache, which has {free} GiB",
        _shorter_or_more_cache,
    )
    yield Translation(
        r"CUDA out of memory occurred when warming up sampler with (?P<requests>\d+) dummy requests",
        "out of memory on the device while warming up {requests} requests",
        lambda values: [("max_num_seqs", max(1, int(values["requests"]) // 2)), ("gpu_memory_utilization", 0.8)],
    )
    yield Translation(
        r"max_num_batched_tokens \((?P<tokens>\d+)\) is smaller than max_model_len \((?P<length>\d+)\)",
        "`max_num_batched_tokens` ({tokens}) is smaller than `max_model_len` ({length})",
        lambda values: [("max_num_batched_tokens", values["length"]), ("max_model_len", values["tokens"])],
    )
    yield Translation(
        r"User-specified max_model_len \((?P<asked>\d+)\) is greater than the derived max_model_len "
        r"\(\w+=(?P<derived>\d+)(\.0)? or model_max_length=(None|(?P<named>\d+))",
        "`max_model_len` ({asked}) is more than the model's {derived} positions",
        _longest,
    )
    yield Translation(
        r"max_num_batched_tokens \((?P<tokens>\d+)\) must be greater .* max_num_seqs \((?P<seqs>\d+)\)",
        "`max_num_batched_tokens` ({tokens}) is smaller than `max_num_seqs` ({seqs})",
        lambda values: [("max_num_batched_tokens", values["seqs"]), ("max_num_seqs", values["tokens"])],
    )
    # Voxtral and other models of Mistral.
    yield Translation(
        r"This model requires `--tokenizer-mode mistral`",
        "vLLM reads this model from Mistral's own files only (params.json, tekken.json), which omni does not use yet",
        lambda values: [],
        advice="choose another model",
    )


def _table_of_requests() -> Iterable[Translation]:
    """Messages about one request."""
    yield Translation(
        r"decoder prompt \(length \d+\).* longer than the maximum model length of (?P<limit>\d+)"
        r"|This model's maximum context length is (?P<context>\d+) tokens",
        "the prompt is longer than stage `{stage}` takes: {limit}{context} tokens, at least one of them for the answer",
        lambda values: [("max_model_len", "N")],
        advice="shorten it",
    )
    yield Translation(
        r"contains a\(n\) (?P<modality>\w+) item with (?P<tokens>\d+) embedding tokens, which exceeds the "
        r"pre-allocated encoder cache size (?P<limit>\d+)",
        "this {modality} takes {tokens} tokens; stage `{stage}` has room for {limit}",
        lambda values: [("max_num_batched_tokens", values["tokens"])],
        advice="use a smaller one",
    )
    yield Translation(
        r"At most 0 (?P<modality>\w+)\(s\) may be provided in one prompt\.(?P<ours> Set `--limit)?",
        "stage `{stage}` takes no {modality}",
        _limit_if_ours,
    )
    yield Translation(
        r"At most (?P<limit>\d+) (?P<modality>\w+)\(s\) may be provided in one prompt\.(?P<ours> Set `--limit)?",
        "stage `{stage}` takes at most {limit} {modality} per request",
        _limit_if_ours,
    )
    # diffusers' processors of images and videos, of None.
    yield Translation(
        r"Input is in incorrect format\. Currently, we only support",
        "an image, mask or video that it needs is missing",
        lambda values: [],
    )
    # diffusers' context parallelism.
    yield Translation(
        r"Tensor size along dimension to be sharded must be divisible by mesh size",
        "the number of tokens is not a multiple of the stage's degrees in `context_parallel`",
        lambda values: [("context_parallel.ulysses_anything", "true"), ("context_parallel.ring_anything", "true")],
        advice="use another size or prompt",
    )


def _limit_if_ours(values: Values) -> Settings:
    """Set the stage's own limit, if it is not the model's."""
    if values["ours"]:
        yield "limit_mm_per_prompt", f"'{{{values['modality']}: N}}'"


TRANSLATIONS = (*_table(), *_table_of_sizes(), *_table_of_requests())
# Other programs' options for our keys, except those that follow from the key, such as `--max-model-len`.
_OTHER_NAMES = {"VLLM_CPU_KVCACHE_SPACE": "kv_cache_memory_bytes", "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "max_model_len"}
_OPTION = re.compile(r"--[a-z][a-z0-9-]+|\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b")
_TRACEBACK = "`-v` shows the traceback"
_PICKLE = re.compile(r"Weights only load failed")
_REMOTE_CODE = re.compile(r"trust_remote_code=True|--trust-remote-code")


def translate(message: str, stage: StageConfig) -> tuple[str, str | None]:
    """Return a library's message in our terms, and a hint if the table has one."""
    for translation in TRANSLATIONS:
        found = re.search(translation.pattern, message)
        if found is not None:
            values = {name: value or "" for name, value in found.groupdict().items()}
            settings = [_setting(stage, key, value) for key, value in translation.settings(values)]
            advice = " or ".join(filter(None, settings))
            hint = ", or ".join(filter(None, (translation.advice, advice)))
            return translation.message.format(stage=stage.name, **values), hint or None
    if _PICKLE.search(message):
        return (
            "it contains a pickled object that is not a tensor, which could run code",
            "use a copy of the checkpoint with safetensors files",
        )
    if _REMOTE_CODE.search(message):
        return message, "`--trust-remote-code` lets the checkpoint's own code run, if you trust it"
    return _OPTION.sub(lambda found: _ours(found[0], stage), message), None


def _setting(stage: StageConfig, key: str, value: object) -> str | None:
    """Return the option that sets a key; None if the stage has no such key."""
    if key == DTYPE:
        return f"`--set {key}={value}`"
    keys, top = type(stage).model_fields, key.partition(".")[0]
    return f"`--set {stage.name}.{key}={value}`" if top in keys and has_effect(keys[top], stage.backend) else None


def _ours(option: str, stage: StageConfig) -> str:
    key = _OTHER_NAMES.get(option) or option.removeprefix("--").replace("-", "_")
    return f"--set {stage.name}.{key}" if key in type(stage).model_fields else option


def as_failure(
    error: Exception, stage: StageConfig | None = None, *, request_id: str | None = None, loads: str | None = None
) -> Failure:
    """Return an exception as data, with its traceback: a library's words for its options become ours.

    Without `request_id` the whole `stage` failed, or a process without one; `loads` is the model that it was loading.
    """
    details = getattr(error, "details", None) or "".join(traceback.format_exception(error))
    known = known_failure(error)
    if known is not None:
        return Failure.of(known, request_id=request_id, details=details)
    place = plugin_place(error)
    if stage is None:
        message = f"{type(error).__name__}: {error}" + (f" ({place})" if place else "")
        return Failure("stage", message, details=details)
    message, hint = translate(summary(error), stage)
    if isinstance(error, PayloadError) and error.limit is not None:
        hint = f"raise this stage's key `{error.limit}`"
    if hint is None and place is not None:
        return Failure("stage", f"{message} ({place})", f"correct the plug-in; {_TRACEBACK}", details, request_id)
    if loads is not None:
        message, is_missing = f"could not load {loads}: {message}", isinstance(error, OSError)
        if is_missing and not isinstance(error, PermissionError):
            hint = hint or f"is {loads} a whole checkpoint? `-v` shows more"
        hint = hint or f"`omni doctor` checks this machine; {_TRACEBACK}"
    return Failure("stage", message, hint, details, request_id)


def summary(error: Exception) -> str:
    """Summarize an exception in one line, with its type if the text is short, as a `KeyError`'s is."""
    text = " ".join(str(error).split())
    return text if len(text) > 10 else f"{type(error).__name__}: {text}"


def first_line(error: Exception) -> str:
    """Return the class of an error and the first line of its message."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "no further message")
    return f"{type(error).__name__}: {text}"
