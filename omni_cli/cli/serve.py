"""`omni serve`: its options, and the run of a server."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omni_cli.cli.options import LoraOption, ProfileOptions, option, positive_seconds, seconds_option
from omni_cli.cli.profile_choice import fetch_model, note_random_weights, profile_source
from omni_cli.cli.terminal import console
from omni_cli.core.errors import ExitCode, UsageError
from omni_cli.serve.limits import DEFAULT_VIDEOS, MAX_AUDIO_S, MAX_SPEECH_S, Limits, ServerSettings
from omni_cli.serve.listener import bind, get_address, is_loopback

# Imported when the server starts, so that `--help` and usage errors are fast.
if TYPE_CHECKING:
    import socket

    from omni_cli.config.schema import EngineConfig
    from omni_cli.serve.exchange import AccessLog
    from omni_cli.serve.server import Server
    from omni_cli.serve.supervisor import Engine

_DEFAULT = Limits()


def _parser_names(package: str) -> list[str]:
    """Return the names in vLLM's table of a package's parsers, without importing it; none if vLLM is not installed."""
    found = None
    with suppress(ImportError):
        found = importlib.util.find_spec("vllm")
    for place in () if found is None else found.submodule_search_locations or ():
        source = Path(place, package, "__init__.py")
        for node in ast.parse(source.read_text(encoding="utf-8")).body if source.is_file() else ():
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
                return sorted(ast.literal_eval(node.value))
    return []


def _one_of(names: list[str]) -> str:
    return f" One of {', '.join(names)}." if names else ""


_TOOL_PARSERS, _REASONING_PARSERS = _parser_names("tool_parsers"), _parser_names("reasoning")


def _limit(usage: str, help_text: str, **rules: Any) -> Any:
    """Declare the option of one of the server's limits, whose default is that of the limit."""
    name = usage.partition(" ")[0].strip("-").replace("-", "_")
    if usage.endswith(" SECONDS"):
        return option(usage, help_text, default=getattr(_DEFAULT, f"{name}_s"), callback=positive_seconds)
    return option(usage, help_text, default=getattr(_DEFAULT, name), **{"min": 1, **rules})


@dataclass(frozen=True, kw_only=True)
class ServeOptions(ProfileOptions):
    """The address, the limits and the engines."""

    host: str = option("--host ADDRESS", "Address to listen on. Default: loopback only.", default="127.0.0.1")
    port: int = option("--port N", "Port to listen on; 0 picks a free one.", default=8000, min=0, max=65535)
    seed: int | None = option(
        "--seed N", "Seed of requests without one. Default: the profile's, else a random one for each."
    )
    lora: LoraOption = None
    served_model_name: list[str] | None = option(
        "--served-model-name NAME", "Further name of the model in requests; `*` accepts any. Repeatable."
    )
    tool_call_parser: str | None = option(
        "--tool-call-parser NAME",
        "vLLM's parser of calls of tools, for the stage that answers. Default: the one for the checkpoint's chat "
        f"template.{_one_of(_TOOL_PARSERS)}",
    )
    reasoning_parser: str | None = option(
        "--reasoning-parser NAME",
        f"vLLM's parser that separates reasoning from the answer. Default: none.{_one_of(_REASONING_PARSERS)}",
    )
    api_key: str | None = option(
        "--api-key KEY",
        "Require `Authorization: Bearer KEY`. Other users of this machine can read command lines, but not the "
        "environment.",
        envvar="OMNI_API_KEY",
        show_envvar=True,
    )
    allow_origin: list[str] | None = option(
        "--allow-origin ORIGIN",
        "Answer pages of this site, such as `https://app.example`, in browsers; `*` is any site. Repeatable.",
    )
    allow_media_url: list[str] | None = option(
        "--allow-media-url PREFIX",
        "Fetch images, audio and video of requests whose URL begins with this, such as `https://media.example/`. "
        "Default: no URL is fetched. Repeatable.",
    )
    no_ui: bool = option("--no-ui", "Serve no page for people at `/`.", default=False)
    timeout_s: float = _limit("--timeout SECONDS", "Time limit per request.")
    drain_timeout: float = seconds_option(
        "--drain-timeout SECONDS", "Time for requests to finish after a stop signal.", default=30.0
    )
    hang_timeout: float | None = seconds_option(
        "--hang-timeout SECONDS",
        "Restart a stage that makes no progress on its requests for this long; sets every stage's `step_timeout_s`.",
    )
    replicas: int | None = option(
        "--replicas N", "Run N engines through Ray Serve: on the cluster of RAY_ADDRESS, else on this machine.", min=1
    )
    max_requests: int = _limit("--max-requests N", "Limit of requests in flight; further ones get status 429.")
    max_body_bytes: int = _limit("--max-body-bytes N", "Size limit of a request's body.", min=1024)
    max_prompt_chars: int = _limit("--max-prompt-chars N", "Length limit of a prompt, in characters.")
    max_image_pixels: int = _limit("--max-image-pixels N", "Limit of pixels of all images in one request.")
    max_video_pixels: int = _limit("--max-video-pixels N", "Limit of pixels of all video frames in one request.")
    max_audio_s: float | None = seconds_option(
        "--max-audio-seconds SECONDS",
        f"Length limit of all audio in one request. Default: {MAX_SPEECH_S:g} for a recording to transcribe, "
        f"{MAX_AUDIO_S:g} for other audio.",
    )
    output_dir: Path | None = option(
        "--output-dir DIR", f"Folder for videos; a restart finds them again. Default: {DEFAULT_VIDEOS}."
    )
    voices_dir: Path | None = option(
        "--voices-dir DIR",
        "Folder for the voices of `POST /v1/audio/voices`; a restart finds them again. Default: none are saved.",
    )
    max_videos: int = _limit("--max-videos N", "Limit of videos kept; the oldest ones make room for new ones.")
    max_videos_bytes: int = _limit("--max-videos-bytes N", "Size limit of all videos kept.")
    max_videos_age_s: float = _limit("--max-videos-age SECONDS", "Time after which a video is removed.")
    max_n: int = _limit("--max-n N", "Limit of images per request.")

    def limits(self) -> Limits:
        return Limits(**{name: getattr(self, name) for name in vars(_DEFAULT) if hasattr(self, name)})


SCHEMA = "omni.serve/1"


def serve(options: ServeOptions) -> int:
    """Serve a model over OpenAI-compatible HTTP until a signal comes.

    Chat, speech, images and videos, depending on the profile; `/health`, `/ready` and `/metrics` report the server's
    state. The log on stderr has one JSON line per request. After SIGTERM or Ctrl-C, running requests finish; a second
    signal stops at once.
    """
    host, api_key, verbose, quiet = options.host, options.api_key, options.verbose, options.quiet
    if api_key is not None and not api_key.strip():
        raise UsageError(
            "the API key is empty", hint="omit `--api-key` and unset `OMNI_API_KEY` to serve without a key"
        )
    config = profile_source(options, options.lora).load()
    if options.hang_timeout is not None:
        timeouts = {"step_timeout_s": options.hang_timeout}
        config = config.with_stages(stage.model_copy(update=timeouts) for stage in config.stages)
    config = _with_parsers(config, options)
    from omni_cli.engine.describing import get_capabilities
    from omni_cli.serve.exchange import AccessLog
    from omni_cli.serve.sites import MediaPrefix, read_origin

    limits = options.limits()
    origins = tuple(map(read_origin, options.allow_origin or ()))
    prefixes = tuple(map(MediaPrefix.read, options.allow_media_url or ()))
    listener = bind(host, options.port)
    loopback = is_loopback(listener)
    if not loopback and api_key is None:
        console.print_warning(f"anyone who can reach {host} can use this server", hint="set a key: `--api-key`")
    capabilities = get_capabilities(config, verbose=verbose)
    fetch_model(config, quiet=quiet)
    note_random_weights(config, quiet=quiet or options.as_json)
    if options.output_dir is not None and "video" not in capabilities.modalities:
        capabilities.check_field("output_dir", "`--output-dir`")
    if options.voices_dir is not None and capabilities.cloning is None:
        capabilities.check_cloned(1, 0, lambda _: "`--voices-dir`")
    names = tuple(options.served_model_name or ())
    if taken := config.adapters.keys() & {config.name, config.model, *names}:
        raise UsageError(f"the LoRA adapter `{min(taken)}` has a name of the model", hint="give it another name")
    settings = ServerSettings(
        limits,
        options.output_dir or DEFAULT_VIDEOS,
        options.voices_dir,
        api_key,
        loopback,
        options.drain_timeout,
        served_model_names=names,
        seed=config.named_seed,
        allowed_origins=origins,
        media_prefixes=prefixes,
        has_page=not options.no_ui,
    )
    log = AccessLog(only_failures=quiet)
    engine = make_engine(config, options.replicas, limits, log, verbose=verbose)
    from omni_cli.serve.server import Server

    server = Server(engine, config, settings, log)
    asyncio.run(_run(server, config, listener, as_json=options.as_json, verbose=verbose, quiet=quiet))
    return ExitCode.OK


def _with_parsers(config: EngineConfig, options: ServeOptions) -> EngineConfig:
    """Set the parsers of the stage that answers with text. Raises `UsageError` if there is none."""
    tables = {"tool_call_parser": _TOOL_PARSERS, "reasoning_parser": _REASONING_PARSERS}
    given = {key: name for key in tables if (name := getattr(options, key)) is not None}
    first, *others = config.stages
    for key, name in given.items():
        option, known = f"--{key.replace('_', '-')}", tables[key]
        if first.kind != "ar":
            raise UsageError(f"`{option}` is for a model that answers with text, and `{config.name}` does not")
        if known and name not in known:
            raise UsageError(f"`{option} {name}`: vLLM has no such parser", hint=f"one of {', '.join(known)}")
    return config.with_stages([first.model_copy(update=given), *others]) if given else config


def make_engine(config: EngineConfig, replicas: int | None, limits: Limits, log: AccessLog, *, verbose: bool) -> Engine:
    """Create an engine in this process, or replicas on Ray; only the imports of its stages have started."""
    from omni_cli.engine.process.fork_server import ForkServer

    if replicas is None:
        ForkServer(config.backends, verbose=verbose).start_spare()  # beside the imports of the server
        from omni_cli.engine.omni_llm import OmniLLM

        return OmniLLM(config, verbose=verbose)
    from omni_cli.engine.replicas.replicated_engine import ReplicatedEngine

    ForkServer.end_spare()  # the engines run below Ray
    return ReplicatedEngine(config, replicas, max_requests=limits.max_requests, on_log_event=log.event, verbose=verbose)


async def _run(
    server: Server, config: EngineConfig, listener: socket.socket, *, as_json: bool, verbose: bool, quiet: bool
) -> None:
    from omni_cli.cli.terminal.progress import choose_progress
    from omni_cli.cli.terminal.stop_signals import stop_signals
    from omni_cli.config.families import has_random_weights
    from omni_cli.requests.sampling import describe

    host, port, url = get_address(listener)
    stages = [(stage.name, stage.kind) for stage in config.stages]
    progress = choose_progress(stages, 0, sys.stderr, quiet=quiet or as_json, verbose=verbose)

    def on_ready() -> None:
        progress.hide()
        if as_json:
            document = {"schema": SCHEMA, "url": url, "host": host, "port": port, "pid": os.getpid()}
            document |= {"profile": config.name, "model": config.model}
            sampling = {stage.name: stage.default_sampling for stage in server.supervisor.stages}
            document["sampling"] = {name: named for name, named in sampling.items() if named}
            console.print_json({**document, "random_weights": has_random_weights(config.model)}, one_line=True)
            console.flush()
        elif not quiet:
            sampled = [(stage.name, describe(stage.default_sampling)) for stage in server.supervisor.stages]
            texts = [f"{name} {text}" for name, text in sampled if text]
            console.print_note(f"{config.name} is served at {url}")
            if texts:
                console.print_note(f"sampling of requests that name none: {'; '.join(texts)}")

    with stop_signals() as stop:
        progress.show()
        try:
            await server.run(listener, stop, on_event=progress.handle, on_ready=on_ready)
        finally:
            progress.hide()
