"""Open containers of audio and video with libav, of the formats and codecs listed here, and whole ones alone."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NoReturn

from omni_cli.core.errors import InputError
from omni_cli.requests.media.images import check_scans

if TYPE_CHECKING:
    import av

# libav's names. None of these demuxers opens anything beside the content itself, and none reads text: no playlist, no
# session description, no image sequence, no device.
FORMATS = (
    "aac", "aiff", "amr", "apng", "au", "avi", "caf", "flac", "gif", "matroska", "mov", "mp3", "mpeg", "mpegts", "ogg",
    "w64", "wav",
)  # fmt: skip
AUDIO_DECODERS = (
    "aac", "aac_latm", "ac3", "adpcm_ima_qt", "adpcm_ima_wav", "adpcm_ms", "alac", "amrnb", "amrwb", "dca", "eac3",
    "flac", "gsm", "gsm_ms", "mp1", "mp1float", "mp2", "mp2float", "mp3", "mp3float", "opus", "pcm_alaw",
    "pcm_bluray", "pcm_dvd", "pcm_f32be", "pcm_f32le", "pcm_f64be", "pcm_f64le", "pcm_mulaw", "pcm_s16be", "pcm_s16le",
    "pcm_s24be", "pcm_s24le", "pcm_s32be", "pcm_s32le", "pcm_s8", "pcm_u8", "vorbis",
)  # fmt: skip
VIDEO_DECODERS = (
    "apng", "dnxhd", "dvvideo", "ffv1", "ffvhuff", "gif", "h263", "h264", "hevc", "huffyuv", "libdav1d", "mjpeg",
    "mpeg1video", "mpeg2video", "mpeg4", "msmpeg4", "msmpeg4v2", "png", "prores", "qtrle", "rawvideo", "theora",
    "utvideo", "vp8", "vp9",
)  # fmt: skip
# 600 s of sound in packets of 2.5 ms, the shortest of Opus, are 240,000.
MAX_PACKETS = 300_000
# Enough for a film with the fonts and subtitles of many languages.
_MAX_STREAMS = 200
# 8192x4320 pixels: a decoder holds about 20 frames.
MAX_FRAME_PIXELS = 8192 * 4320
_MAX_CHUNKS = 10_000
# Sizes from here on stand for an unknown one: writers that cannot seek back use 2**31 - 1, 2**32 - 1 or a little less,
# SoX in AIFF 0x7F000000 and the bytes of a header.
UNKNOWN_BYTES = 0x7F00_0000
# Behind the end of any file; a system may refuse to seek further.
_FAR = 2**40
# By the number in a frame's header, in kbit/s; the lower ones are those of MPEG-2. Neither end is a rate.
MP3_BIT_RATES = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 0)
MP3_LOW_BIT_RATES = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 0)
_OGG_HEAD_BYTES = 27
# A page of Ogg has at most 65,307 bytes.
_MAX_OGG_PAGE = 2**16
# A size of all ones, in any of the lengths that EBML has for a size: not known when it was written.
_EBML_UNKNOWN = {2 ** (7 * length) - 1 for length in range(1, 9)}
_EBML_HEAD, _EBML_SEGMENT = b"\x1a\x45\xdf\xa3", b"\x18\x53\x80\x67"


@contextlib.contextmanager
def open_container(
    content: BinaryIO, name: str, hint: str, *, is_checked: bool = False
) -> Iterator[av.container.InputContainer]:
    """Open a container, of which `check_whole` has been called or is; `name` identifies it, `hint` lists formats.

    Every error of libav within the context becomes an `InputError`.
    """
    import av

    if not is_checked:
        check_whole(content, name)
    content.seek(0)
    options = {
        "format_whitelist": ",".join(FORMATS),
        "codec_whitelist": ",".join((*AUDIO_DECODERS, *VIDEO_DECODERS)),
        "protocol_whitelist": "none",
        "max_streams": str(_MAX_STREAMS),
        "max_pixels": str(MAX_FRAME_PIXELS),
        # Bytes of a WAV packet. With 4096, the default, decoding takes twice as long.
        "max_size": "16384",
    }
    try:
        try:
            container = av.open(content, "r", options=options, metadata_errors="replace", io_open=_refuse_to_open)
        except (av.error.FFmpegError, ValueError) as error:
            raise InputError(
                f"cannot read the {name}: it is damaged, or its format is not among those that can be read", hint=hint
            ) from error
        with container:
            yield container
    except (av.error.FFmpegError, ValueError) as error:
        changes = isinstance(error, av.error.PatchWelcomeError | av.error.ArgumentError)
        reason = "its codec, sample rate or channels change in the middle" if changes else "it is damaged"
        how = "save it as one WAV file, or cut it where it changes" if changes else hint
        raise InputError(f"cannot read the {name}: {reason}", hint=how) from error


def _refuse_to_open(url: str, _flags: int, _options: dict[str, str]) -> NoReturn:
    raise InputError(f"cannot read a file that refers to another one, `{url}`")


class Track:
    """The frames of one stream. `num_damaged` counts packets and frames that could not be decoded, or not wholly."""

    def __init__(
        self,
        container: av.container.InputContainer,
        stream: Any,
        name: str,
        *,
        is_speech: bool = False,
    ) -> None:
        import av

        if stream.codec_context is None or stream.codec_context.name not in (*AUDIO_DECODERS, *VIDEO_DECODERS):
            raise InputError(f"the {name} has a codec that is not among those that can be read")
        for other in container.streams:
            if other.index != stream.index:
                other.discard = av.stream.Discard.all
        self.stream = stream
        self.num_damaged = 0
        self._last = b""
        self._container = container
        self._name = name
        # What bounds a recording to transcribe is its length alone.
        self._max_packets = math.inf if is_speech else MAX_PACKETS

    def packets(self) -> Iterator[av.Packet[Any]]:
        """Yield the packets that are not empty, as ffmpeg does, and last the empty one that ends decoding."""
        packet = None
        for index, packet in enumerate(self._container.demux(self.stream)):
            if index > self._max_packets:
                raise InputError(f"the {self._name} has more than {self._max_packets:,} packets, the maximum")
            if packet.size:
                self._last = bytes(packet)
                yield packet
        if packet is not None:
            yield packet

    @property
    def ends_in_frame(self) -> bool:
        """True if the last frame of an MP3 is shorter than its header says, which the decoder does not mind."""
        codec = self.stream.codec_context
        if codec.name not in ("mp3", "mp3float") or len(self._last) < 4:
            return False
        bit_rates = MP3_BIT_RATES if self._last[1] & 8 else MP3_LOW_BIT_RATES
        number = self._last[2] >> 4
        return bool(len(self._last) < codec.frame_size * bit_rates[number] * 125 // codec.sample_rate)

    def frames(self) -> Iterator[Any]:
        """Decode the packets; skip damaged ones, as players do."""
        import av

        self.stream.codec_context.options = {"max_pixels": str(MAX_FRAME_PIXELS)}
        for packet in self.packets():
            if self.stream.codec_context.name == "mjpeg":
                check_scans(bytes(packet), self._name)
            try:
                frames = packet.decode()
            except (av.error.InvalidDataError, av.error.ArgumentError):
                self.num_damaged += 1
                continue
            for frame in frames:
                self.num_damaged += frame.is_corrupt
                yield frame

    def notes(self) -> list[str]:
        """Return a sentence on damage, if there is any."""
        return [f"the {self._name} is damaged (packets and frames: {self.num_damaged})"] if self.num_damaged else []


def check_whole(content: BinaryIO, name: str) -> None:
    """Raise `InputError` if a chunk that holds sound or frames goes on after the end of the file."""
    size = content.seek(0, io.SEEK_END)
    start, head = beginning(content)
    if head[:4] == _EBML_HEAD:
        chunks = _matroska_segment(content)
    elif layout := _LAYOUTS.get((head[:4], head[8:])):
        chunks = layout.chunks(content, start)
    elif head[:4] == b"RF64":
        chunks = iter([(start + 8, int.from_bytes(_read(content, start + 20, 8), "little"))])
    else:
        # MP4's boxes may come in any order. Other formats end where a first box would have to.
        chunks = _boxes(content)
    for position, num_bytes in chunks:
        if position + num_bytes > size:
            raise InputError(f"the {name} is truncated: it ends before the end that its header gives")


def lacks_last_page(content: BinaryIO) -> bool:
    """True for Ogg whose last page is cut, or does not say that it is the last one."""
    if beginning(content)[1][:4] != b"OggS":
        return False
    tail = _read(content, max(0, content.seek(0, io.SEEK_END) - _MAX_OGG_PAGE), _MAX_OGG_PAGE)
    page = tail[max(0, tail.rfind(b"OggS")) :]
    sizes = page[_OGG_HEAD_BYTES:][: page[_OGG_HEAD_BYTES - 1]] if len(page) >= _OGG_HEAD_BYTES else b""
    is_whole = bool(sizes) and len(page) >= _OGG_HEAD_BYTES + len(sizes) + sum(sizes)
    return not (is_whole and page[5] & 4)


def beginning(content: BinaryIO) -> tuple[int, bytes]:
    """Return where a file begins behind its ID3v2 tags, and its first 12 bytes."""
    start = 0
    while (head := _read(content, start, 12))[:3] == b"ID3":
        start += 10 + sum((byte & 0x7F) << shift for byte, shift in zip(head[6:10], (21, 14, 7, 0), strict=False))
    return start, head


def _read(content: BinaryIO, position: int, num_bytes: int) -> bytes:
    content.seek(position)
    return content.read(num_bytes)


def _boxes(content: BinaryIO) -> Iterator[tuple[int, int]]:
    """Yield the starts and sizes of an MP4 or MOV file's boxes that it cannot be decoded without."""
    position = 0
    for _ in range(_MAX_CHUNKS):
        head = _read(content, position, 16)
        num_bytes, kind = int.from_bytes(head[:4], "big"), head[4:8]
        if num_bytes == 1:
            num_bytes = int.from_bytes(head[8:], "big")
        if num_bytes < 8 or not kind.isalnum():  # 0: up to the end
            return
        if kind in (b"moov", b"mdat", b"moof"):
            yield position, num_bytes
        position = min(position + num_bytes, _FAR)


def _matroska_segment(content: BinaryIO) -> Iterator[tuple[int, int]]:
    _, head_bytes, first = _ebml_element(content, 0)
    kind, num_bytes, first = _ebml_element(content, first + head_bytes)
    if kind == _EBML_SEGMENT and num_bytes not in _EBML_UNKNOWN:
        yield first, num_bytes


def _ebml_element(content: BinaryIO, position: int) -> tuple[bytes, int, int]:
    """Return an element's kind, the number of its bytes, and where they begin; kinds here have four bytes."""
    head = _read(content, position, 12).ljust(12, b"\0")
    length = 9 - head[4].bit_length()
    num_bytes = int.from_bytes(head[4 : 4 + length], "big") & (2 ** (7 * length) - 1)
    return head[:4], num_bytes, position + 4 + length


@dataclass(frozen=True)
class _Layout:
    """A file of chunks: a kind, a size, and the bytes."""

    start: int
    kind_bytes: int
    size_bytes: int
    order: Literal["little", "big"]
    # The chunk that holds the sound or the frames; all others are passed over.
    wanted: bytes
    head_is_counted: bool = False
    alignment: int = 2

    def chunks(self, content: BinaryIO, start: int) -> Iterator[tuple[int, int]]:
        position, head_bytes = start + self.start, self.kind_bytes + self.size_bytes
        for _ in range(_MAX_CHUNKS):
            head = _read(content, position, head_bytes)
            num_bytes = int.from_bytes(head[self.kind_bytes :], self.order)
            if self.head_is_counted:
                num_bytes -= head_bytes
            if len(head) < head_bytes or num_bytes < 0:
                return
            position += head_bytes
            if head.startswith(self.wanted) and num_bytes < UNKNOWN_BYTES:
                yield position, num_bytes
            position = min(position + -(-num_bytes // self.alignment) * self.alignment, _FAR)


# By the bytes at the start and those at 8.
_LAYOUTS = {
    (b"RIFF", b"WAVE"): _Layout(12, 4, 4, "little", b"data"),
    (b"RIFX", b"WAVE"): _Layout(12, 4, 4, "big", b"data"),
    (b"FORM", b"AIFF"): _Layout(12, 4, 4, "big", b"SSND"),
    (b"FORM", b"AIFC"): _Layout(12, 4, 4, "big", b"SSND"),
    (b"RIFF", b"AVI "): _Layout(0, 4, 4, "little", b"RIFF"),
    (b"caff", b"desc"): _Layout(8, 4, 8, "big", b"data", alignment=1),
    (b"riff", b"\xa5\xd6\x28\xdb"): _Layout(40, 16, 8, "little", b"data", head_is_counted=True, alignment=8),
}
