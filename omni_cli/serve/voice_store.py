"""Saved voices in a folder: for each its recording as it was sent, and a record, written whole or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from omni_cli.core.files import cannot_write, check_writable, remove_left_behind, write_whole
from omni_cli.serve.errors import APIError

NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
_NAME = re.compile(NAME_PATTERN)
_RECORD, _SUFFIX = ".voice.json", re.compile(r"\.[a-z0-9]{1,5}")


class SavedVoice(msgspec.Struct, frozen=True):
    """One voice; `created_at` is in seconds since the epoch, `suffix` that of its recording's file."""

    name: str
    consent: str
    created_at: int
    seconds: float
    ref_text: str | None = None
    suffix: str = ".wav"


class VoiceStore:
    """At most `max_voices`. The folder is all its state: several servers may share it, and threads call it."""

    def __init__(self, folder: Path, max_voices: int) -> None:
        self.folder = folder
        self._max_voices = max_voices

    def open(self) -> tuple[str, ...]:
        """Create the folder, or return the names of its records that cannot be read, which are left alone.

        Raises `OutputError` for a folder that cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            check_writable(self.folder)
            with self._lock():
                remove_left_behind(self.folder)
            records = sorted(self.folder.glob(f"*{_RECORD}"))
        except (OSError, ValueError) as error:
            raise cannot_write(self.folder, error, "--voices-dir") from error
        return tuple(path.name for path in records if self._read(path) is None)

    def voices(self) -> list[SavedVoice]:
        """Return all voices by name."""
        read = map(self._read, sorted(self.folder.glob(f"*{_RECORD}")))
        return [voice for voice in read if voice is not None]

    def get(self, name: str) -> SavedVoice | None:
        return self._read(self.folder / f"{name}{_RECORD}") if _NAME.fullmatch(name) else None

    def path(self, voice: SavedVoice) -> Path:
        """The file of a voice's recording."""
        return self.folder / f"{voice.name}.voice{voice.suffix}"

    def add(self, voice: SavedVoice, recording: bytes) -> None:
        """Raises `APIError` for a taken name or one voice too many, `ValueError` for an odd name, and `OSError`."""
        if not _NAME.fullmatch(voice.name) or not _SUFFIX.fullmatch(voice.suffix):
            raise ValueError(f"`{voice.name}{voice.suffix}` is not the name of a voice's file")
        with self._lock():
            names = {known.name.lower() for known in self.voices()}
            if voice.name.lower() in names:
                message = f"a voice `{voice.name}` exists: choose another name, or delete it first"
                raise APIError(400, message, code="voice_exists", param="name")
            if len(names) >= self._max_voices:
                raise APIError(400, "this server keeps no more voices: delete one first", code="too_many_voices")
            # A recording without its record is that of no voice.
            write_whole(self.path(voice), recording)
            write_whole(self.folder / f"{voice.name}{_RECORD}", msgspec.json.encode(voice))

    def remove(self, name: str) -> bool:
        """Return False if there is no such voice. Raises `OSError`."""
        with self._lock():
            voice = self.get(name)
            if voice is None:
                return False
            (self.folder / f"{name}{_RECORD}").unlink()
            self.path(voice).unlink(missing_ok=True)
            return True

    def _read(self, record: Path) -> SavedVoice | None:
        """Return the voice of a record; None if there is none, or if it is not that of a voice of this name."""
        try:
            voice = msgspec.json.decode(record.read_bytes(), type=SavedVoice)
        except (OSError, ValueError):
            return None
        fits = record.name == f"{voice.name}{_RECORD}" and _NAME.fullmatch(voice.name)
        return voice if fits and _SUFFIX.fullmatch(voice.suffix) else None

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        """Exclude other changes, also those of other servers."""
        with (self.folder / ".omni-voices").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
