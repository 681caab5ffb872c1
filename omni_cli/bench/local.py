"""Variants of a profile on this machine: planned and checked before anything starts, then run in separate processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from omni_cli.bench.benchmark import Plan
from omni_cli.bench.commits import checked_out, find_commit
from omni_cli.bench.environment import read_environment
from omni_cli.bench.profile_source import ProfileSource
from omni_cli.bench.protocol import Load
from omni_cli.bench.record_builder import RecordBuilder
from omni_cli.bench.variant_configs import VariantConfig, check_distinct, parse_vary
from omni_cli.bench.variant_process import VariantProcess
from omni_cli.bench.workload import Workload
from omni_cli.config.diagnostics import InvalidProfileError
from omni_cli.config.schema import EngineConfig
from omni_cli.errors import StageError
from omni_cli.files import scratch_folder


@contextmanager
def local_plan(
    source: ProfileSource,
    workload: Workload,
    variants: tuple[VariantConfig, ...],
    *,
    against: str | None,
    command: tuple[str, ...],
    verbose: bool,
    keeps_outputs: bool = False,
    inputs: Path | None = None,
) -> Iterator[Plan]:
    """Plan these variants, or the only one `against` another commit. Raises `OmniError`.

    `inputs` is the file with the inputs of a stage in the middle of the chain, which several plans may share.
    """
    environment = read_environment()
    with ExitStack() as stack:
        if against is not None:
            commit = find_commit(against)
            first, second = _two_commits(commit.ref, commit.commit, environment["code"], variants[0])
            variants = (replace(first, code=stack.enter_context(checked_out(commit))), second)
        folder = stack.enter_context(scratch_folder("omni-bench-"))
        builder = RecordBuilder(
            variants,
            command=command,
            environment=environment,
            workload=workload.describe(source.load()),
            folder=folder,
            keeps_outputs=keeps_outputs,
        )
        inputs_file = inputs or folder / "inputs"

        def launch(index: int) -> VariantProcess:
            return VariantProcess(variants[index], verbose=verbose)

        def load(index: int) -> Load:
            return Load(
                profile=source.profile,
                overrides=(*source.overrides, *variants[index].overrides),
                model=source.model,
                seed=source.seed,
                trust_remote_code=source.trust_remote_code,
                stage=workload.stage,
                batch_size=workload.batch_size,
                input_len=workload.input_len,
                output_len=workload.output_len,
                given_lengths=workload.given_lengths,
                inputs=str(inputs_file),
                records_inputs=not inputs_file.exists(),
                verbose=verbose,
                requests=None if workload.requests is None else str(workload.requests.path),
                slo=dict(workload.slo),
            )

        yield Plan(builder, launch, load)


def plan_variant_configs(
    vary: tuple[str, ...], config: EngineConfig, workload: Workload, source: ProfileSource
) -> tuple[VariantConfig, ...]:
    """Return the variants of `--vary`, or the profile unchanged, with checked configurations. Raises `OmniError`."""
    variants = parse_vary(vary, config, workload.stage) or (VariantConfig(config.name),)
    configs = [load_variant_config(source, variant) for variant in variants]
    check_distinct(variants, configs)
    for variant, varied in zip(variants, configs, strict=True):
        check_variant_config(variant, varied)
    return variants


def check_variant_config(variant: VariantConfig, config: EngineConfig) -> None:
    """Reject settings that the checkpoint does not fit or this machine cannot run. Raises `OmniError`."""
    from omni_cli.checkpoints.resolve import find_folder
    from omni_cli.engine.checkpoint_fit import check_fit

    folder = find_folder(config.model)
    if folder is not None:
        check_fit(config, folder)
    _check_device(variant, config)


def _two_commits(
    ref: str, commit: str, code: Mapping[str, Any], variant: VariantConfig
) -> tuple[VariantConfig, VariantConfig]:
    """Return two variants: the other commit, which is the baseline, and this code."""
    mine = code.get("commit", "")[:12] + (" + changes" if code.get("dirty") else "")
    name = "this code" if mine.startswith(ref) else mine or "this code"
    return (
        replace(variant, name=ref, settings={**variant.settings, "code": commit}),
        replace(variant, name=name if name != ref else "this code", settings={**variant.settings, "code": mine}),
    )


def load_variant_config(source: ProfileSource, variant: VariantConfig, option: str = "--vary") -> EngineConfig:
    """Load a variant's configuration; errors in its settings name the option. Raises `InvalidProfileError`."""
    try:
        return source.load(variant.overrides)
    except InvalidProfileError as error:
        varied = {f"--set {text}" for text in variant.overrides}
        named = []
        for item in error.diagnostics:
            if item.location.source.label in varied:
                written = replace(item.location.source, label=f"{option} {variant.name}")
                item = replace(item, location=replace(item.location, source=written), order=len(error.diagnostics))
            named.append(item)
        # One option sets a key of several stages, and is one mistake.
        raise InvalidProfileError(dict.fromkeys(named)) from error


def _check_device(variant: VariantConfig, config: EngineConfig) -> None:
    """Reject settings that this machine cannot run. Raises `StageError`."""
    from omni_cli.engine.devices import check_devices, has_cuda_device

    check_devices(config)
    if has_cuda_device():
        return
    from omni_cli.execution.copies import why_not_async

    for stage in config.stages:
        if stage.output_copy == "async" and "output_copy" in variant.varied_keys(stage.name):
            raise StageError(f"variant `{variant.name}` cannot take effect: {why_not_async('cpu')}", stage=stage.name)
