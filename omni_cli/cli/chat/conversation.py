"""A conversation: its messages, its settings, and the commands that begin with a slash."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from omni_cli.cli.gate_options import write_report
from omni_cli.errors import InputError, UsageError
from omni_cli.loadtest.dataset import read_image, read_sound
from omni_cli.text import suggest, visible

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


class Leave(Exception):
    """The user wants to leave."""


@dataclass
class Conversation:
    """`messages` are those of OpenAI's API; `parts` go with the next message; `fields` are set in every request."""

    system: str | None = None
    messages: list[dict[str, Any]] = field(default_factory=list)
    parts: list[dict[str, Any]] = field(default_factory=list)
    fields: dict[str, Any] = field(default_factory=dict)

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

    def answered(self, text: str) -> None:
        """Add the answer, or what there is of one that was stopped."""
        self.parts = []
        self.messages.append({"role": "assistant", "content": text})

    def refused(self) -> None:
        """Take back the message that got no answer; its media wait for the next one."""
        self.messages.pop()

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
            return "\n".join(f"  {key} = {json.dumps(item)}" for key, item in self.fields.items()) or "nothing is set"
        if not value.strip():
            raise UsageError("`/set` takes a field and a value", hint="for example `/set temperature 0`")
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
        write_report(path, json.dumps(document, indent=2, ensure_ascii=False) + "\n")
        return f"saved {path}"
