"""`omni generate`: run a model end to end and write its text, audio and images."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from omni_cli.cli.generate.options import (
    AudioOption,
    GuidanceScaleOption,
    HeightOption,
    ImageOption,
    MaxTokensOption,
    ModalitiesOption,
    NegativePromptOption,
    NumInferenceStepsOption,
    PromptArgument,
    RawOption,
    ReplicasOption,
    RequestsOption,
    SpeakerOption,
    TemperatureOption,
    WidthOption,
)
from omni_cli.cli.options import (
    JsonOption,
    ModelOption,
    OutputDirOption,
    ProfileOption,
    QuietOption,
    SeedOption,
    SetOption,
    TimeoutOption,
    TrustRemoteCodeOption,
    VerboseOption,
)
from omni_cli.cli.profile_choice import choose_profile
from omni_cli.cli.terminal import console
from omni_cli.errors import ExitCode, UsageError

# What follows is loaded when a run begins, so that `--help` and a wrong option are answered at once.
if TYPE_CHECKING:
    from collections.abc import Sequence

    from omni_cli.cli.generate.base_run import RunOutcome
    from omni_cli.cli.generate.printers import Printer
    from omni_cli.cli.generate.run import GenerateEngine, PendingRequest
    from omni_cli.cli.terminal.progress import ProgressDisplay
    from omni_cli.config.schema import EngineConfig
    from omni_cli.inputs.request_spec import BadRequest, RequestSpec


@dataclass(frozen=True)
class RunSettings:
    """Limits and display of a run; nothing about the model."""

    output_dir: Path
    timeout_s: float | None
    as_json: bool
    verbose: bool
    quiet: bool


def generate(
    prompt: PromptArgument = None,
    audio: AudioOption = None,
    image: ImageOption = None,
    modalities: ModalitiesOption = None,
    max_tokens: MaxTokensOption = None,
    temperature: TemperatureOption = None,
    raw: RawOption = False,
    speaker: SpeakerOption = None,
    negative_prompt: NegativePromptOption = None,
    num_inference_steps: NumInferenceStepsOption = None,
    guidance_scale: GuidanceScaleOption = None,
    height: HeightOption = None,
    width: WidthOption = None,
    requests: RequestsOption = None,
    replicas: ReplicasOption = None,
    profile: ProfileOption = None,
    model: ModelOption = None,
    set_: SetOption = None,
    seed: SeedOption = None,
    as_json: JsonOption = False,
    output_dir: OutputDirOption = Path("out"),
    timeout: TimeoutOption = None,
    verbose: VerboseOption = False,
    quiet: QuietOption = False,
    trust_remote_code: TrustRemoteCodeOption = False,
) -> int:
    """Run a model end to end and write its text, audio and images.

    Text goes to stdout as it is made; audio and images go to files in the output folder, whose paths follow.
    """
    fields = {
        "prompt": prompt,
        "audio": audio or None,
        "image": image or None,
        "modalities": modalities,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "raw": raw or None,
        "speaker": speaker,
        "negative_prompt": negative_prompt,
        "num_inference_steps": num_inference_steps,
        "guidance_scale": guidance_scale,
        "height": height,
        "width": width,
    }
    from omni_cli.cli.generate.inputs import decode_specs, read_specs
    from omni_cli.config.loader import load_profile

    if replicas is not None and requests is None:
        raise UsageError("`--replicas` is for many requests", hint="give them as `--requests FILE.jsonl`")
    profile = choose_profile(profile, model, quiet=quiet)
    config = load_profile(profile, overrides=set_ or [], model=model, trust_remote_code=trust_remote_code, seed=seed)
    given = {name: value for name, value in fields.items() if value is not None}
    specs = read_specs(given, requests, config)
    settings = RunSettings(output_dir, timeout, as_json, verbose, quiet)
    if replicas is not None:
        return run_on_replicas(specs, config, replicas, settings)
    return run(decode_specs(specs, config), config, settings)


def make_engine(config: EngineConfig, *, verbose: bool) -> GenerateEngine:
    """The engine of a profile, not yet started."""
    from omni_cli.engine.omni_llm import OmniLLM

    return OmniLLM(config, verbose=verbose)


def run(requests: Sequence[PendingRequest | BadRequest], config: EngineConfig, settings: RunSettings) -> ExitCode:
    """Run requests on their own engine and show what comes out. Raises `OmniError` if none could run."""
    from omni_cli.cli.artifacts import ArtifactWriter
    from omni_cli.cli.generate.run import GenerateRun, PendingRequest

    writer = ArtifactWriter(settings.output_dir, [request.request_id for request in requests])
    if any(request.writes_files for request in requests):
        writer.prepare()
    else:
        config = _text_only(config)
    progress = _choose_progress(config, sum(isinstance(request, PendingRequest) for request in requests), settings)
    printer = _choose_printer(requests, progress, settings)

    async def run_on_engine() -> RunOutcome:
        engine = make_engine(config, verbose=settings.verbose)
        session = GenerateRun(engine, requests, writer=writer, printer=printer, progress=progress)
        return await session.run(timeout_s=settings.timeout_s)

    outcome = asyncio.run(run_on_engine())
    _show_end(outcome, config, settings)
    return outcome.exit_code


def run_on_replicas(
    specs: Sequence[RequestSpec | BadRequest], config: EngineConfig, replicas: int, settings: RunSettings
) -> ExitCode:
    """Run requests on several engines and show what comes out. Raises `OmniError` if none could run."""
    from omni_cli.cli.artifacts import ArtifactWriter
    from omni_cli.cli.generate.replicated_run import ReplicatedRun
    from omni_cli.inputs.capabilities import Capabilities
    from omni_cli.inputs.request_spec import RequestSpec
    from omni_cli.replicas.batch_job import BatchJob
    from omni_cli.report.finished import FinishedRequests

    finished = FinishedRequests(settings.output_dir, config)
    good = [spec for spec in specs if isinstance(spec, RequestSpec)]
    capabilities = Capabilities.of(config)
    if not any(capabilities.makes_files(spec.modalities) for spec in good):
        config = _text_only(config)
    job = BatchJob(config, replicas, verbose=settings.verbose)
    writer = ArtifactWriter(settings.output_dir, [spec.request_id for spec in specs])
    writer.prepare()
    progress = _choose_progress(config, len(good), settings)
    printer = _choose_printer(specs, progress, settings)

    async def run_job() -> RunOutcome:
        session = ReplicatedRun(job, specs, finished, writer=writer, printer=printer, progress=progress)
        return await session.run(timeout_s=settings.timeout_s)

    outcome = asyncio.run(run_job())
    _show_end(outcome, config, settings)
    return outcome.exit_code


def _text_only(config: EngineConfig) -> EngineConfig:
    """Text is what the first stage makes; the others would be loaded for nothing."""
    return config.with_stages(config.stages[:1])


def _choose_progress(config: EngineConfig, num_requests: int, settings: RunSettings) -> ProgressDisplay:
    from omni_cli.cli.terminal.progress import choose_progress

    stages = [(stage.name, stage.kind) for stage in config.stages]
    return choose_progress(stages, num_requests, sys.stderr, quiet=settings.quiet, verbose=settings.verbose)


def _choose_printer(
    requests: Sequence[PendingRequest | RequestSpec | BadRequest], progress: ProgressDisplay, settings: RunSettings
) -> Printer:
    from omni_cli.cli.generate.printers import BlockPrinter, DocumentPrinter, StreamPrinter

    if settings.as_json:
        return DocumentPrinter(progress, verbose=settings.verbose)
    from_command_line = len(requests) == 1 and requests[0].place is None
    printer = StreamPrinter if from_command_line else BlockPrinter
    return printer(progress, verbose=settings.verbose, quiet=settings.quiet)


def _show_end(outcome: RunOutcome, config: EngineConfig, settings: RunSettings) -> None:
    """The document, or the times, and why the run ended early."""
    from omni_cli.report.generate_json import generate_document
    from omni_cli.report.generate_text import summary_line

    if settings.as_json:
        console.print_json(generate_document(config, outcome.records, outcome.stages))
    elif outcome.stages and not settings.quiet:
        console.print_note(summary_line(outcome.records, outcome.stages, outcome.total_s))
    if outcome.stopped is not None:
        console.print_error(outcome.stopped, verbose=settings.verbose)
