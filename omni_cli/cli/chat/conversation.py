"""A conversation: its messages, its settings, and the commands that begin with a slash."""

from __future__ import annotations

import base64
import json
import mimetypes
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from omni_cli.errors import InputError, OmniError, UsageError
from omni_cli.text import suggest, visible
from omni_cli.whole_file import write_whole

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
_MAX_FILE_BYTES = 24 * 2**20


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
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        body = {"model": model, "messages": [*system, *self.messages], "stream": True}
        return msgspec.json.encode({**body, "stream_options": {"include_usage": True}, **self.fields})

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
            case "/image" | "/audio":
                return self._attach(name[1:], rest)
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

    def _attach(self, kind: str, name: str) -> str:
        path = Path(name).expanduser()
        try:
            content = path.read_bytes()
        except OSError as error:
            raise InputError(f"cannot read `{visible(name)}`: {error.strerror}") from error
        if len(content) > _MAX_FILE_BYTES:
            raise InputError(f"`{visible(name)}` has {len(content):,} bytes; the maximum is {_MAX_FILE_BYTES:,}")
        data = base64.b64encode(content).decode()
        if kind == "image":
            mime = mimetypes.guess_type(path.name)[0] or "image/png"
            self.parts.append({"type": "image_url", "image_url": {"url": f"data:{mime};base64,{data}"}})
        else:
            sound = {"data": data, "format": path.suffix.lstrip(".").lower() or "wav"}
            self.parts.append({"type": "input_audio", "input_audio": sound})
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
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        document = {"messages": [*system, *self.messages], **self.fields}
        path = Path(name).expanduser()
        try:
            write_whole(path, json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n")
        except OSError as error:
            raise OmniError(f"cannot write `{visible(name)}`: {error.strerror}") from error
        return f"saved {path}"
