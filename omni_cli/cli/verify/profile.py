"""`omni verify` of a profile: an engine of its own, and the family's reference."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from omni_cli.bench.outputs import hash_arrays
from omni_cli.bench.variant_configs import parse_vary
from omni_cli.cli.download import fetch_model
from omni_cli.cli.generate.inputs import decode_specs, read_specs
from omni_cli.cli.profile_choice import profile_source
from omni_cli.cli.terminal.progress import print_stage_warnings
from omni_cli.cli.verify.finish import run_checks
from omni_cli.engine.describing import get_capabilities
from omni_cli.errors import UsageError
from omni_cli.inputs.request_spec import BadRequest
from omni_cli.outputs import StageLoading
from omni_cli.report.units import seconds
from omni_cli.verify.checks import Checks, VerifyPlan
from omni_cli.verify.default_requests import default_requests
from omni_cli.verify.engine_subject import EngineSubject, greedy_overrides
from omni_cli.verify.subject import Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from omni_cli.cli.generate.run import PendingRequest
    from omni_cli.cli.verify.options import VerifyOptions
    from omni_cli.config.schema import EngineConfig
    from omni_cli.inputs.capabilities import Capabilities
    from omni_cli.outputs import GenerateRequest


def verify_profile(options: VerifyOptions) -> int:
    """Verify a profile and return the exit code. Raises `OmniError` if nothing was checked."""
    began_s = time.monotonic()
    source = profile_source(options, options.lora)
    config = source.load()
    capabilities = get_capabilities(config, verbose=options.verbose, timeout_s=options.timeout)
    requests = _read(options, config, capabilities)
    greedy = greedy_overrides(config, shorten=options.requests is None)
    plan = VerifyPlan(requests, are_defaults=options.requests is None, low_memory=options.low_memory)
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
        "requests": {request.request_id: request_hash(request) for request in requests},
    }

    def start(folder: Path, say: Callable[[str], None]) -> Checks:
        def on_event(event: object) -> None:
            if isinstance(event, StageLoading):
                print_stage_warnings(event)
                state = "loading" if event.info is None else f"ready in {seconds(event.info.load_s)}"
                say(f"stage {event.name} {state}")

        engine = EngineSubject(
            source, modes, on_event=on_event, say=say, low_memory=options.low_memory, verbose=options.verbose
        )
        return Checks(engine, plan, folder, say)

    return run_checks(start, subject, options, ("omni", *sys.argv[1:]), began_s)


def _read(options: VerifyOptions, config: EngineConfig, capabilities: Capabilities) -> tuple[GenerateRequest, ...]:
    """Return the requests of the file, else ours."""
    if options.requests is None:
        return default_requests(capabilities)
    return read_requests(decode_specs(read_specs({}, options.requests, capabilities), config, capabilities))


def read_requests(pending: Sequence[PendingRequest | BadRequest]) -> tuple[GenerateRequest, ...]:
    """Return the requests of a file. Raises the error of the first wrong line: all of them are verified."""
    requests = []
    for item in pending:
        if isinstance(item, BadRequest):
            raise type(item.error)(f"{item.place}: {item.error.message}", hint=item.error.hint)
        requests.append(replace(item.build(), wants_frames=True))
    return tuple(requests)


def _modes(options: VerifyOptions, config: EngineConfig, greedy: Sequence[str]) -> tuple[Mode, ...]:
    variants = parse_vary(options.vary or (), config, "all")
    if any(variant.environment for variant in variants):
        raise UsageError("`--vary env.NAME` is for `omni bench`", hint="vary keys of the profile")
    named = [(variant.name, variant.overrides) for variant in variants] or [("profile", ())]
    return tuple(Mode(name, (*greedy, *overrides)) for name, overrides in named)


def request_hash(request: GenerateRequest) -> str:
    """Return `sha256:...` of a request's prompt and media."""
    text = f"{request.prompt}\n{request.messages}\n{dict(request.sampling)}\n{dict(request.diffusion)}\n{request.seed}"
    arrays = {"prompt": np.frombuffer(text.encode(), np.uint8)}
    arrays |= {f"image {number}": image for number, image in enumerate(request.images)}
    arrays |= {f"audio {number}": samples for number, (samples, _) in enumerate(request.audio)}
    arrays |= {f"video {number}": video.frames for number, video in enumerate(request.videos)}
    return hash_arrays(arrays)
