"""Variants of a profile on this machine: planned and checked before anything starts, then run in separate processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omni_cli.bench.against import checked_out, find_commit
from omni_cli.bench.benchmark import Plan
from omni_cli.bench.environment import read_environment
from omni_cli.bench.profile_source import ProfileSource
from omni_cli.bench.protocol import Load
from omni_cli.bench.record_builder import RecordBuilder
from omni_cli.bench.treatments import Treatment, check_distinct, parse_vary
from omni_cli.bench.variant_process import Launch, VariantProcess
from omni_cli.bench.workload import Workload
from omni_cli.config.diagnostics import InvalidProfileError
from omni_cli.config.schema import EngineConfig
from omni_cli.errors import StageError
from omni_cli.temporary_folder import scratch_folder


@contextmanager
def local_plan(
    source: ProfileSource,
    workload: Workload,
    treatments: tuple[Treatment, ...],
    *,
    against: str | None,
    command: tuple[str, ...],
    verbose: bool,
    keeps_outputs: bool = False,
    inputs: Path | None = None,
) -> Iterator[Plan]:
    """Plan these treatments, or the only one `against` another commit. Raises `OmniError`.

    `inputs` is the file with the inputs of a stage in the middle of the chain, which several plans may share.
    """
    environment = read_environment()
    with ExitStack() as stack:
        if against is not None:
            commit = find_commit(against)
            first, second = _two_commits(commit.ref, commit.commit, environment["code"], treatments[0])
            treatments = (replace(first, code=stack.enter_context(checked_out(commit))), second)
        folder = stack.enter_context(scratch_folder("omni-bench-"))
        builder = RecordBuilder(
            treatments,
            command=command,
            environment=environment,
            workload=workload.describe(source.load()),
            folder=folder,
            keeps_outputs=keeps_outputs,
        )
        variants = _LocalVariants(treatments, source, workload, inputs or folder / "inputs", verbose)
        yield Plan(builder, variants.launch, variants.load)


@dataclass(frozen=True)
class _LocalVariants:
    """The processes of a profile's variants, and their first requests."""

    treatments: tuple[Treatment, ...]
    source: ProfileSource
    workload: Workload
    inputs: Path
    verbose: bool

    def launch(self, index: int) -> VariantProcess:
        treatment = self.treatments[index]
        return VariantProcess(Launch(treatment.name, treatment.environment, treatment.code), verbose=self.verbose)

    def load(self, index: int) -> Load:
        return Load(
            profile=self.source.profile,
            overrides=(*self.source.overrides, *self.treatments[index].overrides),
            model=self.source.model,
            seed=self.source.seed,
            trust_remote_code=self.source.trust_remote_code,
            stage=self.workload.stage,
            batch_size=self.workload.batch_size,
            input_len=self.workload.input_len,
            output_len=self.workload.output_len,
            given_lengths=self.workload.given_lengths,
            inputs=str(self.inputs),
            records_inputs=not self.inputs.exists(),
            verbose=self.verbose,
            requests=None if self.workload.requests is None else str(self.workload.requests.path),
            slo=dict(self.workload.slo),
        )


def plan_treatments(
    vary: tuple[str, ...], config: EngineConfig, workload: Workload, source: ProfileSource
) -> tuple[Treatment, ...]:
    """Return the treatments of `--vary`, or the profile unchanged, with checked configurations. Raises `OmniError`."""
    treatments = parse_vary(vary, config, workload.stage) or (Treatment(config.name),)
    configs = [load_treatment(source, treatment) for treatment in treatments]
    check_distinct(treatments, configs)
    for treatment, varied in zip(treatments, configs, strict=True):
        check_treatment(treatment, varied)
    return treatments


def check_treatment(treatment: Treatment, config: EngineConfig) -> None:
    """Reject settings that the checkpoint does not fit or this machine cannot run. Raises `OmniError`."""
    from omni_cli.checkpoints.resolve import find_folder
    from omni_cli.engine.checkpoint_fit import check_fit

    folder = find_folder(config.model)
    if folder is not None:
        check_fit(config, folder)
    _check_device(treatment, config)


def _two_commits(ref: str, commit: str, code: Mapping[str, Any], treatment: Treatment) -> tuple[Treatment, Treatment]:
    """Return two treatments: the other commit, which is the baseline, and this code."""
    mine = code.get("commit", "")[:12] + (" + changes" if code.get("dirty") else "")
    name = "this code" if mine.startswith(ref) else mine or "this code"
    return (
        replace(treatment, name=ref, settings={**treatment.settings, "code": commit}),
        replace(treatment, name=name if name != ref else "this code", settings={**treatment.settings, "code": mine}),
    )


def load_treatment(source: ProfileSource, treatment: Treatment, option: str = "--vary") -> EngineConfig:
    """Load a treatment's configuration; errors in its settings name the option. Raises `InvalidProfileError`."""
    try:
        return source.load(treatment.overrides)
    except InvalidProfileError as error:
        varied = {f"--set {text}" for text in treatment.overrides}
        named = []
        for item in error.diagnostics:
            if item.location.source.label in varied:
                written = replace(item.location.source, label=f"{option} {treatment.name}")
                item = replace(item, location=replace(item.location, source=written), order=len(error.diagnostics))
            named.append(item)
        # One option sets a key of several stages, and is one mistake.
        raise InvalidProfileError(dict.fromkeys(named)) from error


def _check_device(treatment: Treatment, config: EngineConfig) -> None:
    """Reject settings that this machine cannot run. Raises `StageError`."""
    from omni_cli.engine.devices import check_devices, has_cuda_device

    check_devices(config)
    if has_cuda_device():
        return
    from omni_cli.execution.copies import why_not_async

    for stage in config.stages:
        if stage.output_copy == "async" and "output_copy" in treatment.varied_keys(stage.name):
            raise StageError(f"variant `{treatment.name}` cannot take effect: {why_not_async('cpu')}", stage=stage.name)
