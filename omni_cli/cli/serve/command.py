"""`omni serve`: the same model over OpenAI-compatible HTTP."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

from omni_cli.cli.download import fetch_model
from omni_cli.cli.profile_choice import profile_source
from omni_cli.cli.serve.options import DEFAULT_VIDEOS, ServeOptions
from omni_cli.cli.terminal import console
from omni_cli.errors import ExitCode, UsageError

# Imported when the server starts, so that `--help` and usage errors are fast.
if TYPE_CHECKING:
    import socket

    from omni_cli.config.schema import EngineConfig
    from omni_cli.serve.access_log import AccessLog
    from omni_cli.serve.limits import Limits
    from omni_cli.serve.server import Server
    from omni_cli.serve.supervisor import Engine

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
    from omni_cli.serve.access_log import AccessLog
    from omni_cli.serve.media_urls import MediaPrefix
    from omni_cli.serve.server import Server, ServerSettings, bind, is_loopback
    from omni_cli.serve.sites import read_origin

    limits = options.limits()
    origins = tuple(map(read_origin, options.allow_origin or ()))
    prefixes = tuple(map(MediaPrefix.read, options.allow_media_url or ()))
    listener = bind(host, options.port)
    loopback = is_loopback(listener)
    if not loopback and api_key is None:
        console.print_warning(f"anyone who can reach {host} can use this server", hint="set a key: `--api-key`")
    capabilities = get_capabilities(config, verbose=verbose)
    fetch_model(config, quiet=quiet)
    if options.output_dir is not None and "video" not in capabilities.modalities:
        capabilities.check_field("output_dir", "`--output-dir`")
    if options.voices_dir is not None and capabilities.cloning is None:
        capabilities.check_cloned(1, 0, lambda _: "`--voices-dir`")
    folder = options.output_dir or DEFAULT_VIDEOS
    names = tuple(options.served_model_name or ())
    if taken := config.adapters.keys() & {config.name, config.model, *names}:
        raise UsageError(f"the LoRA adapter `{min(taken)}` has a name of the model", hint="give it another name")
    settings = ServerSettings(
        api_key,
        loopback,
        options.drain_timeout,
        limits,
        folder,
        served_model_names=names,
        seed=options.seed,
        allowed_origins=origins,
        media_prefixes=prefixes,
        voices_dir=options.voices_dir,
        has_page=not options.no_ui,
    )
    log = AccessLog(only_failures=quiet)
    engine = make_engine(config, options.replicas, limits, log, verbose=verbose)
    server = Server(engine, config, settings, log)
    asyncio.run(_run(server, config, listener, as_json=options.as_json, verbose=verbose, quiet=quiet))
    return ExitCode.OK


def _with_parsers(config: EngineConfig, options: ServeOptions) -> EngineConfig:
    """Set the parsers of the stage that answers with text. Raises `UsageError` if there is none."""
    names = {"tool_call_parser": options.tool_call_parser, "reasoning_parser": options.reasoning_parser}
    given = {key: name for key, name in names.items() if name is not None}
    if not given:
        return config
    first, *others = config.stages
    if first.kind != "ar":
        option = f"--{next(iter(given)).replace('_', '-')}"
        raise UsageError(f"`{option}` is for a model that answers with text, and `{config.name}` does not")
    return config.with_stages([first.model_copy(update=given), *others])


def make_engine(config: EngineConfig, replicas: int | None, limits: Limits, log: AccessLog, *, verbose: bool) -> Engine:
    """Create an engine in this process, or replicas on Ray; not started yet."""
    if replicas is None:
        from omni_cli.engine.omni_llm import OmniLLM

        return OmniLLM(config, verbose=verbose)
    from omni_cli.engine.process.fork_server import ForkServer
    from omni_cli.replicas.replicated_engine import ReplicatedEngine

    ForkServer.end_spare()  # the engines run below Ray
    return ReplicatedEngine(config, replicas, max_requests=limits.max_requests, on_log_event=log.event, verbose=verbose)


async def _run(
    server: Server, config: EngineConfig, listener: socket.socket, *, as_json: bool, verbose: bool, quiet: bool
) -> None:
    from omni_cli.cli.terminal.progress import choose_progress
    from omni_cli.cli.terminal.stop_signals import stop_signals
    from omni_cli.serve.server import get_address

    host, port, url = get_address(listener)
    stages = [(stage.name, stage.kind) for stage in config.stages]
    progress = choose_progress(stages, 0, sys.stderr, quiet=quiet or as_json, verbose=verbose)

    def on_ready() -> None:
        progress.hide()
        if as_json:
            document = {"schema": SCHEMA, "url": url, "host": host, "port": port, "pid": os.getpid()}
            console.print_json({**document, "profile": config.name, "model": config.model}, one_line=True)
            console.flush()
        elif not quiet:
            console.print_note(f"{config.name} is served at {url}")

    with stop_signals() as stop:
        progress.show()
        try:
            await server.run(listener, stop, on_event=progress.handle, on_ready=on_ready)
        finally:
            progress.hide()
