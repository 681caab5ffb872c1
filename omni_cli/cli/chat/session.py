"""The loop of `omni chat`: read a line, stream its answer, write and play its speech; and what slashes command."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import signal
import stat
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from omni_cli.cli.artifacts import ArtifactWriter
from omni_cli.cli.options import write_report
from omni_cli.cli.terminal import console
from omni_cli.core.errors import InputError, OmniError, UsageError
from omni_cli.core.text import suggest, visible
from omni_cli.openai_api.choices import AnswerChoice
from omni_cli.openai_api.client import Client, Outcome
from omni_cli.openai_api.media import read_image, read_sound
from omni_cli.openai_api.reading import ChatReader
from omni_cli.openai_api.routes import Route
from omni_cli.openai_api.sound import ReceivedSound
from omni_cli.report.units import milliseconds, seconds
from omni_cli.requests.outputs import AudioOutput
from omni_cli.requests.sampling import SamplingValues, describe, with_request

COMMANDS = {
    "/image": "FILE: show an image with the next message",
    "/audio": "FILE: play a sound with the next message",
    "/speech": "on|off: answer with speech, too",
    "/system": "TEXT: replace the system message",
    "/set": "FIELD VALUE: set a field of the requests, such as `temperature 0`; `null` removes it",
    "/save": "FILE: write the conversation as JSON",
    "/reset": "forget all messages",
    "/help": "list the commands",
    "/quit": "leave, as Ctrl-D does",
}
_PLAYERS = (("ffplay", "-nodisp", "-autoexit", "-loglevel", "quiet"), ("paplay",), ("aplay", "-q"), ("afplay",))
_HISTORY = Path("omni", "chat_history")
_CHUNK_BYTES = 1 << 16
# Fields that the loop itself sends: another value would lose the conversation or words of an answer.
_OWN_FIELDS = {
    "messages": "they are those of this conversation",
    "stream": "answers are shown while they are made",
    "n": "each message has one answer",
}


class Leave(Exception):
    """The user wants to leave."""


class Conversation(msgspec.Struct):
    """`messages` are those of OpenAI's API; `parts` go with the next message; `fields` are set in every request.

    `defaults` is the sampling of a request without these fields, where the server tells it.
    """

    system: str | None = None
    messages: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    fields: dict[str, Any] = {}
    defaults: SamplingValues = msgspec.field(default_factory=dict)

    def ask(self, text: str, model: str) -> bytes:
        """Add a message with the waiting media, and return the request."""
        content: str | list[dict[str, Any]] = text
        if self.parts:
            content = [*self.parts, {"type": "text", "text": text}]
        self.messages.append({"role": "user", "content": content})
        body = {"model": model, "messages": self._all_messages(), "stream": True}
        return msgspec.json.encode({**body, "stream_options": {"include_usage": True}, **self.fields})

    def _all_messages(self) -> list[dict[str, Any]]:
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, *self.messages]

    def add_answer(self, answer: AnswerChoice) -> None:
        """Add the answer, or what there is of one that was stopped."""
        self.parts = []
        message: dict[str, Any] = {"role": "assistant", "content": "".join(answer.content)}
        if answer.refusal:
            message["refusal"] = "".join(answer.refusal)
        if answer.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call.id or f"call_{index}",
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for index, call in answer.tool_calls.items()
            ]
        self.messages.append(message)

    def command(self, line: str) -> str:
        """Run a command; return what to say. Raises `OmniError`, and `Leave`."""
        name, _, rest = line.partition(" ")
        rest = rest.strip()
        match name:
            case "/image":
                return self._attach(read_image, rest)
            case "/audio":
                return self._attach(read_sound, rest)
            case "/speech":
                return self._speech(rest)
            case "/system":
                self.system = rest or None
                return "system message set" if rest else "no system message"
            case "/set":
                return self._set(rest)
            case "/save":
                return self._save(rest)
            case "/reset":
                self.messages, self.parts = [], []
                return "all messages forgotten"
            case "/help":
                return "\n".join(f"  {command} {text}" for command, text in COMMANDS.items())
            case "/quit":
                raise Leave
        raise UsageError(f"unknown command `{visible(name, 40)}`", hint=suggest(name, list(COMMANDS)) or "see `/help`")

    def _attach(self, part_of: Callable[[Path, Callable[[bytes], None]], dict[str, Any]], name: str) -> str:
        path = Path(name).expanduser()
        try:
            self.parts.append(part_of(path, lambda _: None))
        except ValueError as error:
            raise InputError(str(error)) from error
        return f"{path.name} goes with the next message"

    def _speech(self, state: str) -> str:
        if state not in ("on", "off"):
            raise UsageError("`/speech` takes on or off")
        if state == "off":
            self.fields.pop("modalities", None)
            self.fields.pop("audio", None)
            return "answers are text"
        self.fields |= {"modalities": ["text", "audio"], "audio": {"format": "pcm16"}}
        return "answers are text and speech"

    def _set(self, text: str) -> str:
        name, _, value = text.partition(" ")
        if not name:
            lines = [f"  {key} = {json.dumps(item)}" for key, item in self.fields.items()]
            named = with_request(self.defaults, self.fields)
            lines += [f"  sampling: {words}" for words in (describe(named),) if words]
            if (most := named.get("max_tokens", {"source": "request"}))["source"] != "request":
                lines.append(f"  max_tokens = {most['value']} ({most['source']})")
            return "\n".join(lines) or "nothing is set"
        if not value.strip():
            raise UsageError("`/set` takes a field and a value", hint="for example `/set temperature 0`")
        if name in _OWN_FIELDS:
            raise UsageError(f"`{name}` cannot be set: {_OWN_FIELDS[name]}")
        try:
            read = json.loads(value)
        except ValueError:
            read = value.strip()
        if read is None:
            self.fields.pop(name, None)
            return f"{visible(name, 40)} is not set"
        self.fields[name] = read
        return f"{visible(name, 40)} = {json.dumps(read)}"

    def _save(self, name: str) -> str:
        if not name:
            raise UsageError("`/save` takes the name of a file")
        document = {"messages": self._all_messages(), **self.fields}
        path = Path(name).expanduser()
        instead = ", in place of an earlier file" if path.exists() else ""
        write_report(path, json.dumps(document, indent=2, ensure_ascii=False) + "\n")
        return f"saved {path}{instead}"


if TYPE_CHECKING:
    from prompt_toolkit import PromptSession


class Session:
    """One conversation with one server."""

    def __init__(
        self, client: Client, model: str, conversation: Conversation, output_dir: Path, *, quiet: bool
    ) -> None:
        self._client = client
        self._model = model
        self._conversation = conversation
        self._writer = ArtifactWriter(output_dir, ())
        self._quiet = quiet
        self._player: asyncio.subprocess.Process | None = None
        self._numbers = itertools.count()

    async def run(self) -> None:
        """Talk until the input ends."""
        try:
            async for line in _lines():
                self._stop_player()
                text = line.strip()
                try:
                    if text.startswith("/"):
                        console.print_note(self._conversation.command(text))
                    elif text:
                        await self._answer(text)
                except OmniError as error:
                    console.print_error(error)
        except Leave:
            pass
        finally:
            self._stop_player()

    async def _answer(self, text: str) -> None:
        """Stream an answer to stdout; Ctrl-C stops it, and what there is of it stays in the conversation."""
        conversation, reader = self._conversation, _PrintingReader()
        body = conversation.ask(text, self._model)
        began_s = time.perf_counter()
        asking = asyncio.ensure_future(self._client.post(Route.CHAT, body, reader, began_s))
        with _interrupt(asking):
            await asyncio.wait({asking})
        outcome = None if asking.cancelled() else asking.result()
        if reader.closed is not None:
            raise reader.closed
        said, answer = "".join(reader.answer.text), reader.answer.choice(0)
        if said:
            console.print_part("\n")
        if outcome is not None and outcome.failure is not None:
            conversation.messages.pop()  # its media wait for the next one
            raise OmniError(f"{outcome.failure.kind}: {outcome.failure.message}")
        if outcome is None:
            answer.tool_calls.clear()  # half a call cannot be sent back
        for call in answer.tool_calls.values():
            console.print_part(f"{call.name}({call.arguments})\n")
        if outcome is None and not said:
            conversation.messages.pop()
        else:
            conversation.add_answer(answer)
        if outcome is None:
            console.print_note("stopped")
        elif not self._quiet:
            console.print_note(_figures(outcome, began_s))
        if reader.answer.sound is not None:
            await self._speak(reader.answer.sound)

    async def _speak(self, sound: ReceivedSound) -> None:
        """Write the speech to a file, and play it if someone listens and there is a player."""
        path = self._writer.write(str(next(self._numbers)), AudioOutput(sound.samples, sound.sample_rate))
        console.print_note(f"{path}   {seconds(sound.seconds)} audio")
        player = next((words for words in _PLAYERS if shutil.which(words[0])), None)
        if player is not None and sys.stdout.isatty():
            quiet = asyncio.subprocess.DEVNULL
            self._player = await asyncio.create_subprocess_exec(
                *player, str(path), stdin=quiet, stdout=quiet, stderr=quiet
            )

    def _stop_player(self) -> None:
        if self._player is not None and self._player.returncode is None:
            self._player.kill()


@contextmanager
def _interrupt(asking: asyncio.Future[Outcome]) -> Iterator[None]:
    """Let Ctrl-C stop the answer and nothing else."""
    loop, before = asyncio.get_running_loop(), signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda *_: loop.call_soon_threadsafe(asking.cancel))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        asking.cancel()


class _PrintingReader(ChatReader):
    """Prints text as it arrives. `closed` is set if nobody reads it any more: the client would blame the server."""

    closed: BrokenPipeError | None = None

    def feed(self, chunk: bytes, at_s: float) -> None:
        printed = len(self.answer.text)
        super().feed(chunk, at_s)
        try:
            for part in self.answer.text[printed:]:
                console.print_part(part)
        except BrokenPipeError as error:
            self.closed = error
            raise


def _figures(outcome: Outcome, began_s: float) -> str:
    answer = outcome.answer
    assert answer is not None  # it did not fail
    first = [] if answer.first_at is None else [f"TTFT {milliseconds(answer.first_at - began_s)}"]
    tokens = [] if answer.output_tokens is None else [f"{answer.output_tokens} tokens"]
    cut = ["cut at its maximum of tokens"] if answer.finish_reason == "length" else []
    return "  " + " · ".join([*first, *tokens, f"total {seconds(outcome.ended_s - began_s)}", *cut])


async def _lines() -> AsyncIterator[str]:
    """Yield lines: of a terminal with history and completion, else of stdin."""
    if sys.stdin.isatty() and sys.stderr.isatty():
        prompt = _prompt()
        while True:
            try:
                yield await prompt.prompt_async("> ", handle_sigint=False)
            except KeyboardInterrupt:
                continue  # Ctrl-C clears the line
            except EOFError:
                return
    async for line in _stdin():
        yield line


async def _stdin() -> AsyncIterator[str]:
    """Read stdin without a thread, which could not be stopped. A line may be longer than any buffer of asyncio."""
    if stat.S_ISREG(os.fstat(sys.stdin.fileno()).st_mode):
        for line in sys.stdin.buffer:
            yield line.decode(errors="replace")
        return
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    begun: list[bytes] = []
    try:
        while chunk := await reader.read(_CHUNK_BYTES):
            first, *others = chunk.split(b"\n")
            begun.append(first)
            for line in others:
                yield b"".join(begun).decode(errors="replace")
                begun = [line]
        yield b"".join(begun).decode(errors="replace")
    finally:
        transport.close()


def _prompt() -> PromptSession[str]:
    """Return a prompt on stderr; its history is kept if the folder can be written."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.history import FileHistory, History, InMemoryHistory
    from prompt_toolkit.output import create_output

    path = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / _HISTORY
    history: History = InMemoryHistory()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        history = FileHistory(path)
    except OSError:
        console.print_note(f"{path.parent} cannot be written: this conversation's lines are not kept")
    return PromptSession(
        history=history,
        output=create_output(sys.stderr),
        completer=WordCompleter(list(COMMANDS), sentence=True),
        complete_while_typing=False,
    )
