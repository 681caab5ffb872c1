"""The work of one iteration: its stages, inputs and amounts; the same for every variant."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from omni_cli.config.schema import ARStageConfig, EngineConfig, StageConfig, profile_data
from omni_cli.core.errors import InputError, UsageError
from omni_cli.core.text import suggest
from omni_cli.engine.describing import frame_chooser, get_capabilities
from omni_cli.records.record import workload_fingerprint
from omni_cli.requests.capabilities import Capabilities
from omni_cli.requests.jsonl import read_requests
from omni_cli.requests.outputs import GenerateRequest
from omni_cli.requests.request_spec import BadRequest, RequestSpec, build_request

ALL = "all"
_KINDS = ("ar", "diffusion")
_DESCRIPTIVE = ("description", "version")

# Keys of `sampling` that change the amount of work, which `--output-len` fixes.
_LENGTHS = ("max_tokens", "min_tokens", "ignore_eos", "stop", "stop_token_ids")


@dataclass(frozen=True)
class Workload:
    """`stage` is the value of `--stage`: a stage's name, `ar`, `diffusion` or `all`.

    Each iteration sends `batch_size` requests at once. A prompt has `input_len` tokens, and every AR stage generates
    exactly `output_len`, except those in `given_lengths`, which generate their profile's `max_tokens`. The requests of
    a file (`requests`) have their own number, prompts and media. `slo` are limits on values of a request (`ttft_s`),
    by which good ones are counted.
    """

    stage: str = ALL
    batch_size: int = 1
    input_len: int = 32
    output_len: int = 32
    given_lengths: tuple[str, ...] = ()
    requests: RequestFile | None = None
    slo: tuple[tuple[str, float], ...] = ()

    def describe(self, config: EngineConfig) -> dict[str, object]:
        """Return the record's `workload`: everything that has to be equal for two measurements to be comparable."""
        prompts: dict[str, object] = {"input_len": self.input_len}
        if self.requests is not None:
            prompts = {"requests_sha256": self.requests.sha256}
        elif Capabilities.of(config).transcribes:
            prompts = {"input": "speech"}  # sentences of the package
        settings = {key: value for key, value in profile_data(config).items() if key not in _DESCRIPTIVE}
        described = {
            "profile": config.name,
            "model": config.model,
            "stage": self.stage,
            "stages": [stage.name for stage in measured_stages(config, self.stage)],
            "batch_size": self.batch_size,
            **prompts,
            "output_len": self.output_len,
            **({"slo": dict(self.slo)} if self.slo else {}),
            "settings": {**settings, "seed": config.seed},
        }
        return {**described, "fingerprint": workload_fingerprint(described)}


def measured_stages(config: EngineConfig, wanted: str) -> tuple[StageConfig, ...]:
    """Return the stages that `--stage` selects, in order. Raises `UsageError` for none, and for gaps between them."""
    if wanted == ALL:
        return config.stages
    selected = [
        (position, stage)
        for position, stage in enumerate(config.stages)
        if stage.name == wanted or (wanted in _KINDS and stage.kind == wanted)
    ]
    names = [stage.name for stage in config.stages]
    if not selected and wanted in _KINDS:
        raise UsageError(
            f"profile `{config.name}` has no {wanted} stage",
            hint=f"its stages are {', '.join(f'{stage.name} ({stage.kind})' for stage in config.stages)}",
        )
    if not selected:
        known = f"stages of `{config.name}` are {', '.join(names)}; `ar`, `diffusion` and `all` name several"
        raise UsageError(f"unknown stage `{wanted}`", hint=suggest(wanted, [*names, *_KINDS, ALL]) or known)
    first, last = selected[0][0], selected[-1][0]
    if last - first + 1 != len(selected):
        separate = ", ".join(stage.name for _, stage in selected)
        raise UsageError(
            f"the {wanted} stages of `{config.name}` are not consecutive: {separate}",
            hint="measure them one at a time with `--stage NAME`",
        )
    return tuple(stage for _, stage in selected)


def stages_before(config: EngineConfig, measured: Collection[StageConfig]) -> tuple[StageConfig, ...]:
    """Return the stages that make the input of the first measured one."""
    names = [stage.name for stage in config.stages]
    first = min(names.index(stage.name) for stage in measured)
    return config.stages[:first]


def has_successor(config: EngineConfig, measured: Collection[StageConfig]) -> bool:
    """Return True if the last measured stage passes its output to another stage."""
    return config.stages[-1].name not in {stage.name for stage in measured}


def with_fixed_work(config: EngineConfig, output_len: int, given_lengths: Collection[str] = ()) -> EngineConfig:
    """Return a configuration in which every AR stage generates `output_len` tokens, and none ends early."""

    def with_fixed_length(stage: StageConfig) -> StageConfig:
        if not isinstance(stage, ARStageConfig) or stage.has_given_length:
            return stage
        length = (stage.name in given_lengths and stage.sampling.max_tokens) or output_len
        fixed = {"max_tokens": length, "min_tokens": length, "ignore_eos": True}
        return stage.model_copy(update={"sampling": stage.sampling.model_copy(update=fixed)})

    return config.with_stages(map(with_fixed_length, config.stages))


def lengths_given_by(overrides: Collection[str]) -> tuple[str, ...]:
    """Return the names of the stages whose number of tokens is set by `STAGE.sampling.max_tokens=N`."""
    keys = [text.partition("=")[0].strip() for text in overrides]
    return tuple(dict.fromkeys(key.partition(".")[0] for key in keys if key.endswith(".sampling.max_tokens")))


@dataclass(frozen=True)
class RequestFile:
    """`sha256` is that of the file and of all media that its lines name."""

    path: Path
    num_requests: int
    sha256: str


def describe_requests(path: Path, config: EngineConfig, warn: Callable[[str], None]) -> RequestFile:
    """Check a file before anything is loaded. Raises `UsageError` or `InputError` for the first invalid line."""
    specs = _read_specs(path, config)
    digest = hashlib.sha256(path.read_bytes())
    for spec in specs:
        for note in _build(spec, config).notes:
            warn(note)
        for file in spec.files:
            digest.update(file.read_bytes())
    return RequestFile(path.absolute(), len(specs), digest.hexdigest())


def measured_requests(path: Path, config: EngineConfig) -> tuple[tuple[GenerateRequest, bool], ...]:
    """Return the requests of a checked file, with their media decoded; True for one whose line sets a seed, which is
    then used in every iteration."""
    return tuple((_build(spec, config), spec.has_seed) for spec in _read_specs(path, config))


def _read_specs(path: Path, config: EngineConfig) -> list[RequestSpec]:
    specs = []
    for spec in read_requests(path, get_capabilities(config), {}):
        if isinstance(spec, BadRequest):
            raise _at(spec.place, spec.error)
        if spec.request.modalities is not None:
            hint = "choose the stages with `--stage`, and remove the key"
            raise UsageError(f"{spec.place}: `modalities` has no effect in a measurement", hint=hint)
        fixed = next((name for name in _LENGTHS if name in spec.request.sampling), None)
        if fixed is not None:
            hint = "set it for all requests: `--output-len`, or `--set STAGE.sampling.max_tokens=N`"
            raise UsageError(f"{spec.place}: `sampling.{fixed}` would change the work between requests", hint=hint)
        specs.append(spec)
    return specs


def _build(spec: RequestSpec, config: EngineConfig) -> GenerateRequest:
    try:
        return build_request(spec, config, partial(frame_chooser, config))
    except InputError as error:
        raise _at(spec.place, error) from error


def _at(place: str | None, error: UsageError) -> UsageError:
    return type(error)(f"{place}: {error.message}", hint=error.hint)
