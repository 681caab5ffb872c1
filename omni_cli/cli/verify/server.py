"""`omni verify --url`: a running server, with its weights or without."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from omni_cli.checkpoints.resolve import resolve_model
from omni_cli.cli.download import fetch_model
from omni_cli.cli.generate.inputs import decode_specs, read_specs
from omni_cli.cli.loadtest.options import without_key
from omni_cli.cli.profile_choice import profile_source
from omni_cli.cli.verify.finish import run_checks
from omni_cli.cli.verify.profile import read_requests, request_hash
from omni_cli.config.loader import load_profile
from omni_cli.errors import UsageError
from omni_cli.families import Cloning
from omni_cli.inputs.capabilities import Capabilities
from omni_cli.inputs.fields import FIELDS
from omni_cli.inputs.media.audio import MAX_AUDIO_S, read_speech
from omni_cli.openai_api.client import Client
from omni_cli.openai_api.servers import find_targets, parse_url
from omni_cli.outputs import GenerateRequest
from omni_cli.verify.checks import Checks, VerifyPlan
from omni_cli.verify.default_requests import default_requests
from omni_cli.verify.reference import Reference
from omni_cli.verify.server_subject import REFERENCE_ROUTES, TEXT, ServerSubject

if TYPE_CHECKING:
    from collections.abc import Callable

    from omni_cli.cli.verify.options import VerifyOptions

_REQUEST_TIMEOUT_S = 600.0
# Takes what a chat takes: text, audio, images and video.
_CHAT_PROFILE = "tiny-omni"
_IMAGE_PROFILE = "tiny-image"
# For speech: the server knows what it clones.
_ANY_VOICES = Cloning(max_voices=64, text="optional", max_s=MAX_AUDIO_S)
_OF_TRANSCRIPTION = frozenset({"request_id", *(name for name, row in FIELDS.items() if "transcriptions" in row.http)})


def verify_server(options: VerifyOptions) -> int:
    """Verify a server and return the exit code. Raises `OmniError` if nothing was checked."""
    began_s = time.monotonic()
    assert options.url is not None
    url = parse_url(options.url)
    requests = _read(options)
    reference = _reference(options)
    (target,) = find_targets([url], options.served_model_name, options.api_key)
    # The package's sentences are all that a route for speech is asked, so that none is left out.
    are_defaults = options.requests is None and options.route != "transcriptions"
    plan = VerifyPlan(requests, are_defaults=are_defaults, low_memory=options.low_memory)
    subject = {
        "url": url,
        "route": options.route,
        "model": target.model,
        "server": target.description,
        "weights": options.model,
        "requests": {request.request_id: request_hash(request) for request in requests},
    }

    def start(folder: Path, say: Callable[[str], None]) -> Checks:
        client = Client(url, api_key=options.api_key, timeout_s=_REQUEST_TIMEOUT_S)
        return Checks(ServerSubject(client, options.route, target.model, reference), plan, folder, say)

    return run_checks(start, subject, options, ("omni", *without_key(sys.argv[1:])), began_s)


def _read(options: VerifyOptions) -> tuple[GenerateRequest, ...]:
    config = load_profile(_IMAGE_PROFILE if options.route == "images" else _CHAT_PROFILE)
    capabilities = Capabilities.of(config)
    if options.route == "speech":
        capabilities = replace(capabilities, cloning=_ANY_VOICES, fields=capabilities.fields | {"ref_text"})
    if options.route == "transcriptions":
        capabilities = replace(capabilities, transcribes=True, fields=_OF_TRANSCRIPTION)
    if options.requests is not None:
        return read_requests(decode_specs(read_specs({}, options.requests, capabilities), config, capabilities))
    requests = default_requests(capabilities)
    if options.route == "transcriptions":
        # With a language, Qwen3-ASR writes nothing but the transcript.
        return tuple(
            GenerateRequest(f"speech {number}", audio=(speech,), language="en")
            for number, speech in enumerate(read_speech())
        )
    if options.route == "chat":
        return tuple(request for request in requests if not request.videos)
    return tuple(request for request in requests if not (request.images or request.audio or request.videos))


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
    return Reference(source, config, folder, low_memory=options.low_memory, verbose=options.verbose, row_stage=TEXT)
