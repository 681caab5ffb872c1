"""Runs of `omni verify`: of a profile, with an engine of its own and the family's reference, and of a server."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from omni_cli.checkpoints.files import read_family
from omni_cli.checkpoints.resolve import resolve_model
from omni_cli.cli.generate.inputs import decode_specs, read_specs
from omni_cli.cli.loadtest.options import without_key
from omni_cli.cli.options import reach, show_notes, write_report, write_view
from omni_cli.cli.profile_choice import fetch_model, profile_source
from omni_cli.cli.terminal import console
from omni_cli.cli.terminal.live_display import LiveLine
from omni_cli.cli.terminal.progress import say_loading
from omni_cli.cli.terminal.stop_signals import run_until_stopped
from omni_cli.cli.verify.options import VerifyOptions
from omni_cli.config.families import Cloning, Family, get_family_of_stages
from omni_cli.config.loader import load_profile
from omni_cli.config.schema import EngineConfig
from omni_cli.core.errors import ExitCode, OmniError, UsageError
from omni_cli.core.files import scratch_folder
from omni_cli.engine.describing import get_capabilities
from omni_cli.measure.bench.environment import read_environment
from omni_cli.measure.bench.outputs import hash_arrays
from omni_cli.measure.bench.variant_configs import VariantConfig, parse_vary
from omni_cli.measure.verify.checks import Checks
from omni_cli.measure.verify.default_requests import default_requests
from omni_cli.measure.verify.engine_subject import EngineSubject, greedy_overrides
from omni_cli.measure.verify.reference import Reference
from omni_cli.measure.verify.server_subject import REFERENCE_ROUTES, TEXT, ServerSubject
from omni_cli.openai_api.client import Client, find_targets
from omni_cli.records.record_file import save_record, utc_now, with_digest
from omni_cli.records.verify_record import TokenProbability, VerifyRecord, exit_code
from omni_cli.report.renderers import to_text
from omni_cli.report.units import count
from omni_cli.report.verify_view import probabilities_text, verify_view
from omni_cli.requests.capabilities import Capabilities
from omni_cli.requests.contents import StageIO
from omni_cli.requests.fields import FIELDS
from omni_cli.requests.media.audio import MAX_AUDIO_S
from omni_cli.requests.outputs import GenerateRequest
from omni_cli.requests.request_spec import BadRequest

_REQUEST_TIMEOUT_S = 600.0
# Takes what a chat takes: text, audio, images and video.
_CHAT_PROFILE = "tiny-omni"
_IMAGE_PROFILE = "tiny-image"
# For speech: the server knows what it clones.
_ANY_VOICES = Cloning(max_voices=64, text="optional", max_s=MAX_AUDIO_S)
_OF_TRANSCRIPTION = frozenset({"request_id", *(name for name, row in FIELDS.items() if "transcriptions" in row.http)})


def verify_profile(options: VerifyOptions) -> int:
    """Verify a profile and return the exit code. Raises `OmniError` if nothing was checked."""
    began_s = time.monotonic()
    source = profile_source(options, options.lora)
    config = source.load()
    python = _reference_python(options, get_family_of_stages(config.model, config.stages))
    capabilities = get_capabilities(config, verbose=options.verbose, timeout_s=options.timeout)
    requests = _read_requests(options, config, capabilities)
    greedy = greedy_overrides(config, shorten=options.requests is None)
    modes = _modes(options, config, greedy)
    for mode in modes:
        source.load(mode.overrides)  # a mistake is reported before anything loads
    fetch_model(config, quiet=options.quiet)
    subject = {
        "profile": config.name,
        "model": config.model,
        "dtype": config.dtype,
        "stages": [stage.name for stage in config.stages],
        "modes": [mode.name for mode in modes],
        "requests": {request.request_id: _hash_request(request) for request in requests},
    }

    def start(folder: Path, line: LiveLine) -> Checks:
        on_event, say = partial(say_loading, say=line.step), line.say
        engine = EngineSubject(
            source,
            modes,
            on_event=on_event,
            say=say,
            low_memory=options.low_memory,
            verbose=options.verbose,
            reference_python=python,
        )
        return Checks(engine, requests, folder, say, are_defaults=options.requests is None)

    return _run_checks(start, subject, options, began_s)


def _read_requests(
    options: VerifyOptions, config: EngineConfig, capabilities: Capabilities
) -> tuple[GenerateRequest, ...]:
    """Return the requests of the file, else ours. Raises the error of the first wrong line: none is left out."""
    if options.requests is None:
        return default_requests(capabilities)
    requests = []
    for item in decode_specs(read_specs({}, options.requests, capabilities), config, capabilities):
        if isinstance(item, BadRequest):
            raise type(item.error)(f"{item.place}: {item.error.message}", hint=item.error.hint)
        request = item.build()
        heard = replace(request.transcription, asked=request.transcription.asked or capabilities.transcribes)
        requests.append(replace(request, transcription=heard, stage=StageIO(wants_frames=True), notes=()))  # shown
    return tuple(requests)


def _modes(options: VerifyOptions, config: EngineConfig, greedy: Sequence[str]) -> tuple[VariantConfig, ...]:
    variants = parse_vary(options.vary or (), config, "all") or (VariantConfig("profile"),)
    if any(variant.environment for variant in variants):
        raise UsageError("`--vary env.NAME` is for `omni bench`", hint="vary keys of the profile")
    return tuple(replace(variant, overrides=(*greedy, *variant.overrides)) for variant in variants)


def _hash_request(request: GenerateRequest) -> str:
    """Return `sha256:...` of a request's prompt and media."""
    text = f"{request.prompt}\n{request.messages}\n{dict(request.sampling)}\n{dict(request.diffusion)}\n{request.seed}"
    arrays = {"prompt": np.frombuffer(text.encode(), np.uint8)}
    arrays |= {f"image {number}": image for number, image in enumerate(request.media.images)}
    arrays |= {f"audio {number}": samples for number, (samples, _) in enumerate(request.media.audio)}
    arrays |= {f"video {number}": video.frames for number, video in enumerate(request.media.videos)}
    return hash_arrays(arrays)


def verify_server(options: VerifyOptions) -> int:
    """Verify a server and return the exit code. Raises `OmniError` if nothing was checked."""
    began_s = time.monotonic()
    assert options.url is not None
    requests = _read_for_server(options)
    reference = _reference(options)
    (url,) = reach([options.url], options)
    (target,) = find_targets([url], options.served_model_name, options.api_key)
    # The package's sentences are all that a route for speech is asked, so that none is left out.
    are_defaults = options.requests is None and options.route != "transcriptions"
    subject = {
        "url": url,
        "route": options.route,
        "model": target.model,
        "server": target.description,
        "weights": options.model,
        "requests": {request.request_id: _hash_request(request) for request in requests},
    }

    def start(folder: Path, line: LiveLine) -> Checks:
        client = Client(url, api_key=options.api_key, timeout_s=_REQUEST_TIMEOUT_S)
        server = ServerSubject(client, options.route, target.model, reference)
        return Checks(server, requests, folder, line.say, are_defaults=are_defaults)

    return _run_checks(start, subject, options, began_s)


def _read_for_server(options: VerifyOptions) -> tuple[GenerateRequest, ...]:
    config = load_profile(_IMAGE_PROFILE if options.route == "images" else _CHAT_PROFILE)
    capabilities = Capabilities.of(config)
    if options.route == "speech":
        capabilities = replace(capabilities, cloning=_ANY_VOICES, fields=capabilities.fields | {"ref_text"})
    if options.route == "transcriptions":
        capabilities = replace(capabilities, transcribes=True, fields=_OF_TRANSCRIPTION)
    requests = _read_requests(options, config, capabilities)
    if options.requests is not None or options.route == "transcriptions":
        return requests
    if options.route == "chat":
        return tuple(request for request in requests if not request.media.videos)
    return tuple(
        request for request in requests if not (request.media.images or request.media.audio or request.media.videos)
    )


def _reference(options: VerifyOptions) -> Reference | None:
    if options.model is None:
        return None
    if options.route not in REFERENCE_ROUTES:
        names = ", ".join(f"`{name}`" for name in REFERENCE_ROUTES)
        raise UsageError(f"`--model` with `--url` is for the routes {names}", hint="leave it out")
    source = profile_source(options, options.lora)
    config = source.load()
    fetch_model(config, quiet=options.quiet)
    folder = Path(resolve_model(config.model))
    return Reference(
        source,
        str(folder),
        low_memory=options.low_memory,
        verbose=options.verbose,
        row_stage=TEXT,
        python=_reference_python(options, read_family(folder)),
    )


def _reference_python(options: VerifyOptions, family: Family | None) -> str | None:
    """Return the Python of the family's reference. Raises `UsageError` for one that cannot run it."""
    path = options.reference_python
    if path is None or family is None:
        return None
    if not (path.is_file() and os.access(path, os.X_OK)):
        raise UsageError(f"`--reference-python {path}` is no program", hint="name the `bin/python` of an environment")
    package, recipe = family.reference_package, family.reference_recipe
    if recipe is None:
        raise UsageError(
            f"the reference of `{family.name}` runs in omni's own Python", hint="leave out `--reference-python`"
        )
    find = f"import importlib.util as util, sys; sys.exit(util.find_spec({package!r}) is None)"
    if subprocess.run([path, "-c", find], capture_output=True, check=False).returncode:
        made = f"`make {recipe}` makes an environment that has: `.{recipe}/bin/python`"
        raise UsageError(f"`--reference-python {path}` has no package `{package}`", hint=made)
    return str(path.absolute())


def _run_checks(
    start: Callable[[Path, LiveLine], Checks],
    subject: dict[str, Any],
    options: VerifyOptions,
    began_s: float,
) -> ExitCode:
    """Run the checks that `start` makes with a folder for files and a line that shows progress.

    Raises `OmniError` if it ends before any check is done.
    """
    environment = read_environment()
    line = LiveLine(sys.stderr, quiet=options.quiet or options.as_json, verbose=options.verbose)
    try:
        with scratch_folder("omni-verify-") as folder:
            checking = start(folder, line)
            what = subject.get("profile") or subject["url"]
            line.step(f"{what}: {count(len(subject['requests']), 'request')} in each check")
            work, stopped = asyncio.run(run_until_stopped(checking.run(), options.timeout))
            failure = None if work.cancelled() else work.exception()
    finally:
        line.end()
    if failure is not None:
        if not isinstance(failure, OmniError) or not checking.rows:
            raise failure
        stopped = failure
    if stopped is not None and not checking.rows:
        raise stopped
    record = VerifyRecord(
        created=utc_now(),
        command=("omni", *without_key(sys.argv[1:])),
        environment=environment,
        subject=subject,
        rows=tuple(checking.rows),
        elapsed_s=time.monotonic() - began_s,
        stopped=None if stopped is None else stopped.message,
        notes=tuple(checking.subject.notes),
    )
    _write(record, checking.probabilities, options)
    if stopped is not None:
        console.print_error(stopped, verbose=options.verbose)
        return stopped.exit_code if stopped.exit_code is ExitCode.INTERRUPTED else ExitCode.RUN_FAILED
    code = exit_code(record.rows, strict=options.strict)
    if code is ExitCode.INCONCLUSIVE:
        console.print_error(OmniError("nothing could be decided"), verbose=False)
    return code


def _write(record: VerifyRecord, probabilities: Sequence[TokenProbability], options: VerifyOptions) -> None:
    if options.output_json is not None:
        save_record(record, options.output_json)
    view = verify_view(record, strict=options.strict)
    write_view(view, view.title, options.markdown, options.junit)
    show_notes(view)
    noted = options.logprobs and probabilities
    if options.as_json:
        extra = {"logprobs": msgspec.to_builtins(probabilities)} if noted else {}
        console.print_json({**with_digest(record), **extra})
        return
    if noted:
        console.print_text(probabilities_text(probabilities) + "\n")
        if options.output_json is not None:
            path = options.output_json.with_suffix(".logprobs.jsonl")
            write_report(path, "".join(json.dumps(msgspec.to_builtins(item)) + "\n" for item in probabilities))
            console.print_text(f"log-probabilities: {path}\n")
    console.print_text(to_text(view))
