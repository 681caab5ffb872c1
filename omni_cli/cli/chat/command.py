"""`omni chat`: an interactive conversation with a profile or a server."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omni_cli.cli.loadtest.options import ApiKeyOption
from omni_cli.cli.options import LoraOption, OutputDirOption, ProfileOptions, WaitOption, option, parse_seed, reach
from omni_cli.cli.profile_choice import RANDOM_WEIGHTS, fetch_model, profile_source
from omni_cli.cli.terminal import console
from omni_cli.core.errors import ExitCode, UsageError

# Imported when the conversation begins, so that `--help` and usage errors are fast.
if TYPE_CHECKING:
    from omni_cli.cli.chat.session import Conversation
    from omni_cli.config.schema import EngineConfig

_HOST = "127.0.0.1"
_REQUEST_TIMEOUT_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class ChatOptions(ProfileOptions):
    """A profile, a model or a server to talk to."""

    url: str | None = option(
        "--url URL", "Talk to a running OpenAI-compatible server instead; `--model` is then its model."
    )
    api_key: ApiKeyOption = None
    seed: int | None = option(
        "--seed N|random",
        "Seed of every answer; `random` draws one. Default: the profile's, else a random one for each.",
        parser=parse_seed,
    )
    wait: WaitOption = None
    lora: LoraOption = None
    system: str | None = option("--system TEXT", "The system message.")
    output_dir: OutputDirOption = Path("out/chat")


def chat(options: ChatOptions) -> int:
    """Talk to a model: answers are streamed, and speech is written to files and played.

    `/help` lists the commands for images, sounds, speech and settings. Ctrl-C stops an answer, Ctrl-D leaves. Without a
    terminal, each line of stdin is a message.
    """
    from omni_cli.cli.chat.session import Conversation

    if options.as_json:
        raise UsageError("`--json` has no effect here", hint="`/save FILE` writes the conversation as JSON")
    conversation = Conversation(options.system)
    if options.seed is not None:
        conversation.fields["seed"] = options.seed
    if options.url is not None:
        given = {
            "--profile": options.profile,
            "--set": options.set_,
            "--lora": options.lora,
            "--trust-remote-code": options.trust_remote_code,
        }
        if unused := next((name for name, value in given.items() if value), None):
            raise UsageError(f"`{unused}` has no effect with `--url`", hint="a server has its own profile")
        from omni_cli.openai_api.client import find_targets

        (target,) = find_targets(reach([options.url], options), options.model, options.api_key)
        _run(_talk(target.url, target.model, conversation, options, options.api_key))
        return ExitCode.OK
    if options.wait is not None:
        raise UsageError("`--wait` is for servers", hint="add `--url URL`")
    config = profile_source(options, options.lora).load()
    from omni_cli.engine.describing import get_capabilities
    from omni_cli.engine.process.fork_server import ForkServer

    capabilities = get_capabilities(config, verbose=options.verbose)
    if "text" not in capabilities.modalities or capabilities.transcribes:
        message = f"profile `{config.name}` does not answer with text"
        raise UsageError(message, hint="`omni generate` takes its prompts")
    fetch_model(config, quiet=options.quiet)
    ForkServer(config.backends, verbose=options.verbose).start_spare()  # its imports run beside those of the server
    _run(_talk_to_own(config, conversation, options))
    return ExitCode.OK


def _run(talk: Coroutine[Any, Any, None]) -> None:
    from omni_cli.cli.terminal.stop_signals import run_until_stopped

    work, stopped = asyncio.run(run_until_stopped(talk, None))
    failure = stopped or work.exception()
    if failure is not None:
        raise failure


async def _talk(url: str, model: str, conversation: Conversation, options: ChatOptions, api_key: str | None) -> None:
    from omni_cli.cli.chat.session import Session
    from omni_cli.openai_api.client import Client, describe_model
    from omni_cli.requests.sampling import describe

    async with Client(url, api_key=api_key, timeout_s=_REQUEST_TIMEOUT_S) as client:
        described = await describe_model(client, model)
        conversation.defaults = described.get("sampling") or {}
        if not options.quiet:
            said = f"; sampling: {text}, unless `/set` changes it" if (text := describe(conversation.defaults)) else ""
            console.print_note(f"{model} at {url}{said}; `/help` lists the commands, Ctrl-D leaves")
            if described.get("random_weights"):
                console.print_note(RANDOM_WEIGHTS.format(name=model))
        await Session(client, model, conversation, options.output_dir, quiet=options.quiet).run()


async def _talk_to_own(config: EngineConfig, conversation: Conversation, options: ChatOptions) -> None:
    """Serve the profile in this process, on a port and with a key that nobody else knows, and talk to it."""
    from omni_cli.cli.terminal.progress import choose_progress
    from omni_cli.engine.omni_llm import OmniLLM
    from omni_cli.serve.exchange import AccessLog
    from omni_cli.serve.limits import ServerSettings
    from omni_cli.serve.listener import bind, get_address
    from omni_cli.serve.server import Server

    key = secrets.token_urlsafe(32)
    settings = ServerSettings(output_dir=options.output_dir, api_key=key, drain_timeout_s=0.5, seed=config.named_seed)
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, bind(_HOST, 0) as listener:
        engine = OmniLLM(config, verbose=options.verbose)
        server = Server(engine, config, settings, AccessLog(None if options.verbose else nowhere))
        stages = [(stage.name, stage.kind) for stage in config.stages]
        progress = choose_progress(stages, 0, sys.stderr, quiet=options.quiet, verbose=options.verbose)
        ready, done = asyncio.Event(), asyncio.Event()
        progress.show()
        running = asyncio.ensure_future(server.run(listener, done.wait(), on_event=progress.handle, on_ready=ready.set))
        waiting = asyncio.ensure_future(ready.wait())
        try:
            await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
            progress.hide()
            if ready.is_set():
                model = config.stages[0].choose_adapter(None) or config.name
                await _talk(get_address(listener)[2], model, conversation, options, key)
        finally:
            progress.hide()
            waiting.cancel()
            done.set()
            await running
