"""Decode audio, also that of a video, to float32 samples."""

from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from omni_cli.core.errors import InputError
from omni_cli.requests.media.containers import Track, beginning, check_whole, lacks_last_page, open_container

if TYPE_CHECKING:
    import av

_Parts = Iterable[tuple[int, np.ndarray]]
MAX_AUDIO_S = 600.0
MAX_CHANNELS = 32
# Samples that are kept: 600 s of 48 kHz in stereo, 230 MB.
MAX_SAMPLES = 600 * 48_000 * 2
# Samples that are decoded, of all channels: 600 s of 48 kHz in 7.1.
MAX_DECODED_SAMPLES = 600 * 48_000 * 8
# A day: longer than any recording that is heard at once.
MAX_SPEECH_S = 86_400.0
# Longer speech is not kept as it is, but written to a file at the rate of all models that hear it.
LONG_SPEECH_S = 60.0
# Shorter speech has not one frame of a spectrogram.
MIN_SPEECH_S = 0.025
SPEECH_RATE_HZ = 16_000
# A rate outside this range is more likely a broken header than intended.
SAMPLE_RATE_RANGE_HZ = (1_000, 384_000)

# Beginnings of WAV, Wave64 and AIFF. libsndfile reads PCM of them that libav takes for something else, or not at all:
# with unused bits (24 of 32), with numbers in the other order, without a length, behind an ID3v2 tag.
_FOR_LIBSNDFILE = (b"RIFF", b"RIFX", b"RF64", b"riff", b"FORM")
# Less is a matter of how audio and video are packed.
_MAX_OFFSET_S = 0.1
# The header of an MP3 file that counts its frames is in the first of them.
_MP3_HEAD_BYTES = 1024
_HINT = "WAV, FLAC, MP3, Ogg, M4A, AAC and the sound of MP4, MOV, WebM, MKV and AVI can be read"
# The headers of these formats give the exact number of samples; others give an estimate or a duration in other units.
_EXACT_FORMATS = ("aiff", "au", "caf", "flac", "w64", "wav")
_SPEECH = Path(__file__).parent / "speech"
SPEECH_TEXTS = ("What is the capital of France?", "The train to the sea leaves at nine.")
"""The words of `read_speech`."""


@dataclass(frozen=True)
class DecodedAudio:
    """Samples float32 (num_samples,), or (num_samples, channels); `notes` say what was changed or left out.

    Of long speech there are none: `num_written` are in a file.
    """

    samples: np.ndarray
    sample_rate: int
    notes: tuple[str, ...] = ()
    num_written: int = 0


def decode_audio(
    content: BinaryIO, name: str, *, max_s: float = MAX_AUDIO_S, mono: bool = True, file: BinaryIO | None = None
) -> DecodedAudio:
    """Decode audio of at most `max_s` seconds; `name` identifies it in messages.

    Several channels are averaged, or with `mono` False kept. Of a video the sound is decoded. With a `file` it is
    speech to transcribe, also if its end is missing or damaged: more than `LONG_SPEECH_S` seconds are written to the
    file while they are decoded. Raises `InputError` for anything that cannot be used.
    """
    audio = _decode(content, _Length(name, max_s, mono, file))
    heard_s = (audio.num_written or len(audio.samples)) / audio.sample_rate
    if file is not None and heard_s < MIN_SPEECH_S:
        raise InputError(f"the {name} is too short to be speech: {heard_s * 1000:.3g} ms")
    return audio


def _decode(content: BinaryIO, length: _Length) -> DecodedAudio:
    with length.keeping_a_beginning():
        check_whole(content, length.name)
        if length.file is not None and lacks_last_page(content):
            raise InputError(f"the {length.name} is truncated: its last page is missing")
    if (audio := _decode_pcm(content, length)) is not None:
        return audio
    content.seek(beginning(content)[0])
    head = content.read(_MP3_HEAD_BYTES)
    counts_frames = b"Xing" in head or b"Info" in head
    try:
        with open_container(content, length.name, _HINT, is_checked=True) as container:
            stream = container.streams.best("audio")
            if stream is None:
                raise InputError(f"the {length.name} has no audio stream")
            audio = _decode_stream(container, stream, length)
            declared_s = float((stream.duration or 0) * (stream.time_base or 0)) if counts_frames else 0.0
    except InputError as error:
        if not length.faults or error.__cause__ is None:
            raise
        # Such as an MP4 file whose table of samples came last.
        raise InputError(f"{length.faults[0]}, and nothing of it can be read", hint=error.hint) from error
    heard_s = (audio.num_written or len(audio.samples)) / audio.sample_rate
    if length.file is None or heard_s > declared_s - 1:
        return audio
    return replace(audio, notes=(*audio.notes, f"the {length.name} is truncated: {heard_s:.1f} of {declared_s:.1f} s"))


def decode_sound(content: BinaryIO, name: str, *, max_s: float = MAX_AUDIO_S) -> DecodedAudio | None:
    """Decode the sound of a video with its channels; None if it has none."""
    name = f"sound of the {name}"
    with open_container(content, name, _HINT) as container:
        stream = container.streams.best("audio")
        return None if stream is None else _decode_stream(container, stream, _Length(name, max_s, mono=False))


def _decode_pcm(content: BinaryIO, length: _Length) -> DecodedAudio | None:
    """Decode PCM of some containers with libsndfile; None for other content."""
    import soundfile

    start, head = beginning(content)
    if not head.startswith(_FOR_LIBSNDFILE):
        return None
    content.seek(start)
    if start:  # libsndfile skips tags, too, but then leaves out as many bytes at the end
        content = io.BytesIO(content.read())
    with contextlib.suppress(soundfile.LibsndfileError), soundfile.SoundFile(content) as file:
        if file.frames and file.subtype.startswith(("PCM_", "FLOAT", "DOUBLE")):
            length.check(file.samplerate, file.channels, file.frames)
            blocks = file.blocks(2**16, dtype="float32", always_2d=True)
            return _collect(((file.samplerate, block) for block in blocks), length)
    return None


def _decode_stream(container: av.container.InputContainer, stream: Any, length: _Length) -> DecodedAudio:
    """Decode an audio stream of an open container, see `decode_audio`.

    Silence precedes the sound of a video that begins after its frames.
    """
    track = Track(container, stream, length.name, is_speech=length.file is not None)
    expected = _declared_samples(container, stream)
    length.check(stream.codec_context.sample_rate, stream.codec_context.channels, expected)
    audio = _collect(length.up_to_a_fault(_parts(track)), length, expected, _end_s(container, stream))
    notes = track.notes()
    if length.file is not None and track.ends_in_frame:
        notes.append(f"the {length.name} is truncated: its last frame is cut")
    if (num_streams := len(container.streams.audio)) > 1:
        notes.append(f"the {length.name} has {num_streams} audio streams; only one is used")
    video: Any = container.streams.best("video") or stream
    begin_s, frames_s = (float((each.start_time or 0) * each.time_base) for each in (stream, video))
    late_s, samples = begin_s - frames_s, audio.samples
    if abs(late_s) > _MAX_OFFSET_S:
        notes.append(f"the {length.name} begins {abs(late_s):.2f} s {'after' if late_s > 0 else 'before'} the frames")
    if late_s > _MAX_OFFSET_S and not audio.num_written:
        silence = round(late_s * audio.sample_rate)
        length.check(audio.sample_rate, 1, silence + len(samples))
        samples = np.pad(samples, [(silence, 0), (0, 0)][: samples.ndim])
    return DecodedAudio(samples, audio.sample_rate, (*notes, *audio.notes), audio.num_written)


def _collect(parts: _Parts, length: _Length, expected: int = 0, end_s: Fraction | None = None) -> DecodedAudio:
    """Join parts, which are `expected` samples or more, and cut them at `end_s`."""
    name, mono = length.name, length.mono
    kept, num_samples, sample_rate, channels, part = _Samples(length.file), 0, 0, 1, np.empty((0, 1), np.float32)
    for rate, part in parts:
        if num_samples and (rate != sample_rate or (part.shape[1] != channels and not mono)):
            raise InputError(f"the sample rate or the number of channels of the {name} changes in the middle")
        sample_rate, channels = rate, part.shape[1]
        num_samples += len(part)
        length.check(rate, channels, num_samples)
        kept.add(part.mean(axis=1, dtype=np.float32) if mono else part, rate)
    cut = 0
    if end_s and 0 < (padding := num_samples - round(end_s * sample_rate)) < len(part):
        cut = padding * (1 if mono else channels)
    if num_samples < expected:
        with length.keeping_a_beginning():
            raise InputError(f"the {name} is truncated: {num_samples} of {expected} samples")
    if not num_samples:
        raise InputError(f"the {name} has no samples")
    array, num_written = kept.end(cut)
    if not kept.are_finite:
        raise InputError(f"the {name} contains NaN or infinite samples")
    array = array if mono or channels == 1 else array.reshape(-1, channels)
    notes = [f"{note}; its first {num_samples / sample_rate:.1f} s are heard" for note in length.faults[:1]]
    return DecodedAudio(array, SPEECH_RATE_HZ if num_written else sample_rate, tuple(notes), num_written)


class _Samples:
    """Samples as they are decoded: in memory, or with a `file` there, once they are many."""

    def __init__(self, file: BinaryIO | None) -> None:
        self.are_finite = True
        self._file = file
        self._bytes = bytearray()
        self._resampler: Any = None
        self._rate = 0

    def add(self, part: np.ndarray, rate: int) -> None:
        self.are_finite &= bool(np.isfinite(part).all())
        self._rate = rate
        if self._resampler is not None:
            self._write(part)
            return
        self._bytes += part.tobytes()
        if self._file is not None and len(self._bytes) > LONG_SPEECH_S * rate * 4:
            import soxr

            self._resampler = soxr.ResampleStream(rate, SPEECH_RATE_HZ, 1, dtype="float32")
            self._write(np.frombuffer(self._bytes, np.float32))
            self._bytes = bytearray()

    def _write(self, part: np.ndarray, *, is_last: bool = False) -> None:
        assert self._file is not None
        self._file.write(self._resampler.resample_chunk(part, last=is_last).data)

    def end(self, cut: int) -> tuple[np.ndarray, int]:
        """Return the samples without the last `cut`, or the number of those in the file."""
        if self._resampler is None or self._file is None:
            del self._bytes[len(self._bytes) - 4 * cut :]
            return np.frombuffer(self._bytes, np.float32), 0
        self._write(np.empty(0, np.float32), is_last=True)
        num_written = self._file.tell() // 4 - round(cut * SPEECH_RATE_HZ / self._rate)
        self._file.truncate(4 * num_written)
        return np.empty(0, np.float32), num_written


def _parts(track: Track) -> Iterator[tuple[int, np.ndarray]]:
    """Yield sample rates and float32 samples (num_samples, channels), scaled by powers of two only."""
    import av

    kind: object = None
    for frame in track.frames():
        if kind != (kind := (frame.format.name, frame.layout.name, frame.sample_rate)):
            # The resampler changes no rate, so it keeps no samples back.
            packed = av.AudioResampler(format="flt")
        for part in packed.resample(frame):
            yield part.sample_rate, part.to_ndarray().reshape(-1, part.layout.nb_channels)


@dataclass(frozen=True)
class _Length:
    """The limits on one piece of audio.

    With a `file` it is speech, of which a beginning is enough: `faults` say why there is no more.
    """

    name: str
    max_s: float
    mono: bool
    file: BinaryIO | None = None
    faults: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def keeping_a_beginning(self) -> Iterator[None]:
        """Note an `InputError` about missing samples, if a beginning is enough."""
        try:
            yield
        except InputError as error:
            if self.file is None:
                raise
            self.faults.append(error.message)

    def up_to_a_fault(self, parts: _Parts) -> _Parts:
        """Yield decoded parts up to a fault, if a beginning is enough."""
        import av

        is_begun = False
        try:
            for part in parts:
                is_begun = True
                yield part
        except (av.error.FFmpegError, ValueError):
            if self.file is None or not is_begun:
                raise
            self.faults.append(f"the {self.name} is damaged")

    def check(self, sample_rate: int, channels: int, num_samples: int) -> None:
        low, high = SAMPLE_RATE_RANGE_HZ
        if sample_rate and not low <= sample_rate <= high:
            raise InputError(f"the {self.name} has a sample rate of {sample_rate} Hz; supported: {low} to {high} Hz")
        if channels > MAX_CHANNELS:
            raise InputError(f"the {self.name} has {channels} channels; the maximum is {MAX_CHANNELS}")
        if num_samples > self.max_s * sample_rate:
            raise InputError(
                f"the {self.name} is longer than {self.max_s:g} s, the maximum", hint="cut it into shorter files"
            )
        kept = num_samples * (1 if self.mono else channels)
        for number, maximum, what in (
            (kept, MAX_SAMPLES, "samples"),
            (num_samples * channels, MAX_DECODED_SAMPLES, "samples in all channels"),
        ):
            if number > maximum and self.file is None:
                raise InputError(
                    f"the {self.name} has more than {maximum:,} {what}, the maximum",
                    hint="lower its sample rate, or cut it into shorter files",
                )


def _end_s(container: av.container.InputContainer, stream: Any) -> Fraction | None:
    """Return where the sound of an MP4 or M4A file ends. Its last packet goes on with the encoder's padding.

    None for a fragmented file, which has no table of samples.
    """
    if not container.format.name.startswith("mov") or not stream.duration or not stream.frames:
        return None
    itunes = container.metadata.get("iTunSMPB", "").split()
    if len(itunes) > 3:
        with contextlib.suppress(ValueError):
            return Fraction(int(itunes[3], 16), stream.codec_context.sample_rate)
    return Fraction(stream.duration * stream.time_base)


def _declared_samples(container: av.container.InputContainer, stream: Any) -> int:
    """Return the exact number of samples that a header declares; 0 without one."""
    codec = stream.codec_context
    if container.format.name not in _EXACT_FORMATS or not codec.name.startswith(("pcm_", "flac")):
        return 0
    duration_s = Fraction((stream.duration or 0) * stream.time_base)
    return round(duration_s * int(codec.sample_rate))


@functools.cache
def read_speech() -> tuple[tuple[np.ndarray, int], ...]:
    """Read two English sentences, spoken by espeak-ng: float32 samples (num_samples,) and their rate, of each."""
    sounds = []
    for path in sorted(_SPEECH.glob("*.ogg")):
        with path.open("rb") as file:  # in this process: it is ours
            decoded = decode_audio(file, path.name)
        sounds.append((decoded.samples, decoded.sample_rate))
    return tuple(sounds)
