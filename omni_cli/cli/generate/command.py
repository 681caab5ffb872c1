"""`omni generate`: run a model end to end and write its text, audio and images."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from omni_cli.cli.generate.options import GenerateOptions
from omni_cli.cli.profile_choice import fetch_model, note_random_weights, profile_source
from omni_cli.cli.terminal import console
from omni_cli.core.errors import ExitCode, UsageError

# Imported when a run begins, so that `--help` and usage errors are fast.
if TYPE_CHECKING:
    from collections.abc import Sequence

    from omni_cli.cli.generate.printers import Printer
    from omni_cli.cli.generate.run import PendingRequest, RunOutcome
    from omni_cli.cli.terminal.progress import ProgressDisplay
    from omni_cli.config.schema import EngineConfig
    from omni_cli.engine.omni_llm import OmniLLM
    from omni_cli.requests.capabilities import Capabilities
    from omni_cli.requests.request_spec import BadRequest, RequestSpec


def generate(options: GenerateOptions) -> int:
    """Run a model end to end and write its text, audio and images.

    Text is streamed to stdout; audio and images are written to files in the output folder, whose paths follow.
    """
    replicas, requests = options.replicas, options.requests
    if replicas is not None and requests is None:
        raise UsageError("`--replicas` is for many requests", hint="give them as `--requests FILE.jsonl`")
    if len(options.lora or ()) > 1 and requests is None:
        hint = 'give one `--lora`, or requests with `"lora": "NAME"` as `--requests FILE.jsonl`'
        raise UsageError("a prompt on the command line cannot choose between several `--lora`", hint=hint)
    config = profile_source(options, options.lora).load()
    from omni_cli.cli.generate.inputs import decode_specs, fit_to_requests, read_specs
    from omni_cli.engine.describing import get_capabilities
    from omni_cli.requests.jsonl import read_lines

    began_s = time.monotonic()
    capabilities = get_capabilities(config, verbose=options.verbose, timeout_s=options.timeout)
    if options.help_inputs:
        from omni_cli.cli.generate.inputs import show_inputs

        show_inputs(config, capabilities, as_json=options.as_json)
        return ExitCode.OK
    first_line = next(read_lines(requests), (0, b""))[1] if requests and not options.set_fields() else b""
    if requests is not None and b'"custom_id"' in first_line:
        from omni_cli.cli.generate.batch import run_batch

        fetch_model(config, quiet=options.quiet)
        progress = _begin((), config, 0, options, writes=False)["progress"]
        outcome = run_batch(requests, config, progress, began_s, options)
        _show_end(outcome, config, options)
        return outcome.exit_code
    specs = read_specs(options.set_fields(), requests, capabilities)
    if replicas is not None:
        return run_on_replicas(specs, config, capabilities, replicas, options)
    decoded = decode_specs(specs, config, capabilities, verbose=options.verbose)
    config = fit_to_requests(config, specs, makes_video="video" in capabilities.modalities)
    fetch_model(config, quiet=options.quiet)
    return run(decoded, config, options, began_s)


def make_engine(config: EngineConfig, *, verbose: bool, max_concurrency: int) -> OmniLLM:
    """Create the engine of a profile, not started yet."""
    from omni_cli.engine.omni_llm import OmniLLM

    return OmniLLM(config, verbose=verbose, max_concurrency=max_concurrency)


def run(
    requests: Sequence[PendingRequest | BadRequest], config: EngineConfig, options: GenerateOptions, began_s: float
) -> ExitCode:
    """Run requests on their own engine and show their outputs. Raises `OmniError` if none could run."""
    import asyncio

    from omni_cli.cli.generate.run import GenerateRun, PendingRequest

    writes = any(request.writes_files for request in requests)
    config = config if writes else config.with_stages(config.stages[:1])  # the first stage makes the text
    num_usable = sum(isinstance(request, PendingRequest) for request in requests)
    shown = _begin(requests, config, num_usable, options, writes=writes)
    engine = make_engine(config, verbose=options.verbose, max_concurrency=num_usable)

    session = GenerateRun(worker=engine, requests=requests, **shown)
    outcome = asyncio.run(session.run(timeout_s=options.timeout, waited_s=time.monotonic() - began_s))
    _show_end(outcome, config, options)
    return outcome.exit_code


def run_on_replicas(
    specs: Sequence[RequestSpec | BadRequest],
    config: EngineConfig,
    capabilities: Capabilities,
    replicas: int,
    options: GenerateOptions,
) -> ExitCode:
    """Run requests on several engines and show their outputs. Raises `OmniError` if none could run."""
    import asyncio

    from omni_cli.cli.generate.run import ReplicatedRun
    from omni_cli.engine.process.fork_server import ForkServer
    from omni_cli.engine.replicas.batch_job import BatchJob
    from omni_cli.report.generate_results import FinishedRequests
    from omni_cli.requests.request_spec import RequestSpec

    ForkServer.end_spare()  # the engines run below Ray
    finished = FinishedRequests(options.output_dir, config)
    good = [spec for spec in specs if isinstance(spec, RequestSpec)]
    if not any(capabilities.makes_files(spec.request.modalities) for spec in good):
        config = config.with_stages(config.stages[:1])
    job = BatchJob(config, replicas, verbose=options.verbose)
    shown = _begin(specs, config, len(good), options, continues=finished.path.exists())

    session = ReplicatedRun(worker=job, requests=specs, finished=finished, **shown)
    outcome = asyncio.run(session.run(timeout_s=options.timeout))
    _show_end(outcome, config, options)
    return outcome.exit_code


def _begin(
    requests: Sequence[PendingRequest | RequestSpec | BadRequest],
    config: EngineConfig,
    num_usable: int,
    options: GenerateOptions,
    *,
    writes: bool = True,
    continues: bool = False,
) -> dict[str, Any]:
    """Prepare the folder, tell what there is to tell before a run, and return its writer, printer and progress."""
    from omni_cli.cli.artifacts import ArtifactWriter
    from omni_cli.cli.terminal.progress import choose_progress

    names, is_quiet = [request.request_id for request in requests], options.quiet or options.as_json
    writer = ArtifactWriter(options.output_dir, names, overwrite=options.overwrite)
    note = writer.prepare(continues=continues) if writes else None
    if note is not None and not is_quiet:
        console.print_note(note)
    note_random_weights(config, quiet=is_quiet)
    stages = [(stage.name, stage.kind) for stage in config.stages]
    progress = choose_progress(stages, num_usable, sys.stderr, quiet=options.quiet, verbose=options.verbose)
    return {"writer": writer, "progress": progress, "printer": _choose_printer(requests, progress, options)}


def _choose_printer(
    requests: Sequence[PendingRequest | RequestSpec | BadRequest], progress: ProgressDisplay, options: GenerateOptions
) -> Printer:
    from omni_cli.cli.generate.printers import BlockPrinter, Printer, StreamPrinter

    noted = [note for request in requests for note in getattr(request, "notes", ())]
    if options.as_json:
        return Printer(progress, verbose=options.verbose, noted=noted)
    from_command_line = len(requests) == 1 and requests[0].place is None
    printer = StreamPrinter if from_command_line else BlockPrinter
    made = printer(progress, verbose=options.verbose, quiet=options.quiet, noted=noted)
    if from_command_line:
        made.sampling = getattr(requests[0], "sampling", {})
    return made


def _show_end(outcome: RunOutcome, config: EngineConfig, options: GenerateOptions) -> None:
    """Print the document, or the times, and the reason for an early end."""
    from omni_cli.report.generate_results import generate_document, summary_line

    if options.as_json:
        console.print_json(generate_document(config, outcome.records, outcome.stages))
    elif outcome.stages and not options.quiet:
        console.print_note(summary_line(outcome.records, outcome.stages, outcome.total_s, config.seed))
    if outcome.stopped is not None:
        console.print_error(outcome.stopped, verbose=options.verbose)
