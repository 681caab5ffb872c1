"""Open containers of audio and video with libav, of the formats and codecs listed here and of no others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from omni_cli.errors import InputError
from omni_cli.inputs.media.scans import check_scans
from omni_cli.inputs.media.truncation import check_whole

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


@contextlib.contextmanager
def open_container(content: BinaryIO, name: str, hint: str) -> Iterator[av.container.InputContainer]:
    """Open a container; `name` identifies it in messages, `hint` lists formats.

    Every error of libav within the context becomes an `InputError`.
    """
    import av

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

    def __init__(self, container: av.container.InputContainer, stream: Any, name: str) -> None:
        import av

        if stream.codec_context is None or stream.codec_context.name not in (*AUDIO_DECODERS, *VIDEO_DECODERS):
            raise InputError(f"the {name} has a codec that is not among those that can be read")
        for other in container.streams:
            if other.index != stream.index:
                other.discard = av.stream.Discard.all
        self.stream = stream
        self.num_damaged = 0
        self._container = container
        self._name = name

    def packets(self) -> Iterator[av.Packet[Any]]:
        """Yield the packets that are not empty, as ffmpeg does, and last the empty one that ends decoding."""
        packet = None
        for index, packet in enumerate(self._container.demux(self.stream)):
            if index > MAX_PACKETS:
                raise InputError(f"the {self._name} has more than {MAX_PACKETS:,} packets, the maximum")
            if packet.size:
                yield packet
        if packet is not None:
            yield packet

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
