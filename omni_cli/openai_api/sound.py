"""The sound of an answer: its samples, their rate and when they arrived.

The rate comes from the container, else from the media type, else from the caller, else it is `SAMPLE_RATE`.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from omni_cli.core.errors import AnswerError, InputError
from omni_cli.requests.encoding import AUDIO_TYPES
from omni_cli.requests.media.containers import MP3_BIT_RATES, MP3_LOW_BIT_RATES, UNKNOWN_BYTES

if TYPE_CHECKING:
    import numpy as np

SAMPLE_RATE = 24_000
"""Sample rate of raw PCM that states none, 16 bit and mono: that of OpenAI."""

_MAX_RATE, _MAX_CHANNELS = 384_000, 32
_FORMATS = {media_type: name for name, media_type in AUDIO_TYPES.items()} | {
    "audio/pcm16": "pcm", "audio/x-pcm": "pcm", "audio/l16": "pcm", "audio/raw": "pcm", "audio/x-raw": "pcm",
    "audio/x-wav": "wav", "audio/wave": "wav", "audio/vnd.wave": "wav", "audio/mp3": "mp3", "audio/opus": "opus",
    "audio/x-flac": "flac",
}  # fmt: skip
_UNSPECIFIC = ("", "application/octet-stream", "binary/octet-stream")
_MAGIC = {b"OggS": "opus", b"fLaC": "flac", b"ID3": "mp3", b"\x1aE\xdf\xa3": "webm", b"FORM": "aiff", b"caff": "caf"}
# Samples per second of version 1 of MPEG audio.
_MP3_HZ = (44_100, 48_000, 32_000)


@dataclass(frozen=True)
class ReceivedSound:
    """`samples` are float32 (num_samples,), or (num_samples, channels).

    `arrivals` are the times at which pieces of it had arrived, each with the number of samples until then; those of a
    compressed sound are the share of its bytes. `is_rate_assumed`: nothing states the rate.
    """

    samples: np.ndarray
    sample_rate: int
    arrivals: tuple[tuple[float, int], ...]
    is_rate_assumed: bool = False

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.sample_rate


@dataclass
class SpokenAnswer:
    """The sound of an answer while it arrives; `audio_at` is of its first byte.

    `pcm` are its bytes as they came, `pcm_at` the times of its pieces, each with the number of bytes until then.
    `asked_format` and `sample_rate` are the caller's.
    """

    audio_at: float | None = None
    pcm: bytearray = field(default_factory=bytearray)
    pcm_at: list[tuple[float, int]] = field(default_factory=list)
    content_type: str = ""
    asked_format: str | None = None
    sample_rate: int | None = None

    @cached_property
    def sound(self) -> ReceivedSound | None:
        """The samples, for use when the answer has ended, outside of the event loop. Raises `AnswerError`."""
        if not self.pcm:
            return None
        try:
            return read_sound(self.pcm, self.pcm_at, self.content_type, self.asked_format, self.sample_rate)
        except (InputError, ValueError) as error:
            raise AnswerError("invalid answer", f"a sound that cannot be read: {error}") from error

    @property
    def first_audio_s(self) -> float | None:
        """The arrival of the first samples, which follow a container's header."""
        return self.sound.arrivals[0][0] if self.sound is not None and self.sound.arrivals else self.audio_at

    def add_bytes(self, data: bytes, at_s: float) -> None:
        """Add bytes of the sound."""
        self.audio_at = at_s if self.audio_at is None else self.audio_at
        self.pcm += data
        self.pcm_at.append((at_s, len(self.pcm)))

    def add_audio(self, data: str, at_s: float) -> None:
        """Add bytes of the sound in base64. Raises `AnswerError`."""
        try:
            self.add_bytes(base64.b64decode(data, validate=True), at_s)
        except binascii.Error as error:
            raise AnswerError("invalid answer", f"an audio chunk is not base64: {error}") from error

    def check_format(self) -> None:
        """Raise `AnswerError` for a sound in another format than the one that was asked for, or for something else."""
        asked = self.asked_format
        if not self.pcm or asked is None:
            return
        found = find_format(self.pcm, self.content_type, asked)
        if found != asked.replace("wav", "pcm"):
            beginning = bytes(self.pcm[:200]).decode("utf-8", "replace")
            shown = "the sound" if "\0" in beginning or "\ufffd" in beginning else beginning
            raise AnswerError(f"{found} instead of {asked}", f"{shown} is not {asked}, as asked for")


def find_format(data: bytes | bytearray, content_type: str, asked: str | None) -> str:
    """Return OpenAI's name of a sound's format, PCM for WAV; or the media type of something else."""
    media_type = content_type.partition(";")[0].strip().lower()
    if data[:1] in (b"{", b"[", b"<") and all(byte >= 32 or byte in b"\t\r\n" for byte in data[:200]):
        return "text" if media_type in (*_FORMATS, *_UNSPECIFIC) else media_type
    name = next((name for magic, name in _MAGIC.items() if data.startswith(magic)), "wav" if _is_wav(data) else None)
    name = name or _find_frames(data)
    name = name or _FORMATS.get(media_type) or (asked or "pcm" if media_type in _UNSPECIFIC else media_type)
    return "pcm" if name == "wav" else name


def _find_frames(data: bytes | bytearray) -> str | None:
    """Return `mp3` or `aac` for a sound that begins with three of its frames, which say how long they are: the first
    bytes of samples can look like one."""
    place, names = 0, list[str]()
    while len(names) < 3 and place + 6 <= len(data):
        first, second, third = data[place : place + 3]
        version, layer, kbps, hz = second >> 3 & 3, second >> 1 & 3, third >> 4, third >> 2 & 3
        if first == 0xFF and second & 0xF6 == 0xF0:
            names.append("aac")
            place += max(7, (data[place + 3] & 3) << 11 | data[place + 4] << 3 | data[place + 5] >> 5)
        elif first == 0xFF and second >= 0xE0 and version != 1 and layer == 1 and 0 < kbps < 15 and hz < 3:
            names.append("mp3")
            rates = MP3_BIT_RATES if version == 3 else MP3_LOW_BIT_RATES
            bits = (144_000 if version == 3 else 72_000) * rates[kbps]
            place += bits // (_MP3_HZ[hz] >> {3: 0, 2: 1, 0: 2}[version]) + (third >> 1 & 1)
        else:
            return None
    return names[0] if len(names) == 3 and len(set(names)) == 1 else None


def read_sound(
    data: bytes | bytearray,
    pieces: Sequence[tuple[float, int]],
    content_type: str = "",
    asked: str | None = None,
    sample_rate: int | None = None,
) -> ReceivedSound:
    """Read the sound of an answer; `pieces` are times, each with the number of bytes until then.

    Every piece that begins with a WAV header is another file, as in chats. Raises `ValueError`, and `InputError` for a
    compressed sound that cannot be decoded.
    """
    import numpy as np

    if find_format(data, content_type, asked) != "pcm":
        return _decode(data, pieces, 0)
    fields = [field.partition("=") for field in content_type.lower().split(";")[1:]]
    stated = {name.strip(): int(value) for name, _, text in fields if (value := text.strip(' "')).isdecimal()}
    rates = (stated.get(name, 0) for name in ("rate", "samplerate", "sample_rate"))
    rate, channels, bits = next(filter(None, rates), 0), stated.get("channels", 1), stated.get("bits", 16)
    is_assumed, rate = not (rate or sample_rate), rate or sample_rate or SAMPLE_RATE
    starts = [0, *(end for _, end in pieces if _is_wav(data[end : end + 12]))]
    parts, arrivals, count = list[np.ndarray](), list[tuple[float, int]](), 0
    for start, end in zip(starts, [*starts[1:], len(data)], strict=True):
        first, last = start, end
        if _is_wav(data[start : start + 12]):
            layout, first, last = _read_wav_header(data, start, end)
            if count and layout != (rate, channels, bits):
                raise ValueError("its sample rate or channels change")
            (rate, channels, bits), is_assumed = layout, False
        if not (0 < rate <= _MAX_RATE and 0 < channels <= _MAX_CHANNELS):
            raise ValueError(f"it has {rate} Hz and {channels} channels")
        if bits != 16:
            return _decode(data, pieces, first)
        frame = 2 * channels
        arrivals += [
            (at_s, count + (min(to, last) - first) // frame) for at_s, to in pieces if first + frame <= to <= end
        ]
        num_samples = (last - first) // frame
        parts.append(np.frombuffer(data, "<i2", num_samples * channels, first).astype(np.float32) / 2**15)
        count += num_samples
    if not count:
        raise ValueError("it has no samples")
    joined = np.concatenate(parts)
    return ReceivedSound(joined if channels == 1 else joined.reshape(-1, channels), rate, tuple(arrivals), is_assumed)


def _decode(data: bytes | bytearray, pieces: Sequence[tuple[float, int]], first: int) -> ReceivedSound:
    """Decode a sound whose samples begin at the byte `first`, in another process."""
    from omni_cli.requests.media.reading import MediaReader, in_memory

    with in_memory(bytes(data)) as file:
        samples, rate = MediaReader(lambda _note: None).audio(file, "sound of the answer", mono=False)
    per_byte = len(samples) / max(1, len(data) - first)
    return ReceivedSound(
        samples, rate, tuple((at_s, round((end - first) * per_byte)) for at_s, end in pieces if end > first)
    )


def _is_wav(data: bytes | bytearray) -> bool:
    return data[:4] == b"RIFF" and data[8:12] == b"WAVE"


def _read_wav_header(data: bytes | bytearray, start: int, end: int) -> tuple[tuple[int, int, int], int, int]:
    """Return the rate, the channels and the bits, 0 for other codes than PCM; and where the samples begin and end."""
    position, layout = start + 12, (0, 0, 0)
    while position + 8 <= end:
        kind, size = struct.unpack_from("<4sI", data, position)
        position += 8
        if kind == b"data":
            return layout, position, end if size == 0 or size >= UNKNOWN_BYTES else min(end, position + size)
        if kind == b"fmt " and position + 16 <= end:
            code, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", data, position)
            layout = rate, channels, bits if code in (1, 0xFFFE) else 0
        position += size + size % 2
    raise ValueError("its WAV header is not complete")
