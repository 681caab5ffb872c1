"""Files that would open other files, or take long or much memory, are refused before the work."""

from __future__ import annotations

import contextlib
import io
import socket
import struct
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import PIL.Image
import pytest
from PIL import Image
from support.ffmpeg import ffmpeg, write_moving, write_sound
from support.image_bytes import jpeg_of_scans, png, png_chunk, tiff

from omni_cli.core.errors import InputError
from omni_cli.requests.media import audio, containers, video
from omni_cli.requests.media.audio import decode_audio
from omni_cli.requests.media.images import decode_image
from omni_cli.requests.media.reading import load_video
from omni_cli.requests.media.video import decode_video

X264 = ("-c:v", "libx264", "-pix_fmt", "yuv420p", "-threads", "1")
Decode = Callable[..., object]


def refused(content: bytes, message: str, decode: Decode = decode_video, **kwargs: object) -> None:
    with pytest.raises(InputError, match=message):
        decode(io.BytesIO(content), "file", **kwargs)


# Text that makes a demuxer open something else


def test_texts_open_no_file_and_no_port(tmp_path: Path) -> None:
    secret = write_moving(tmp_path / "secret.mp4", *X264)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        url = f"127.0.0.1:{server.getsockname()[1]}/a.ts"
        playlist = "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{}\n#EXT-X-ENDLIST\n"
        texts = [
            f"ffconcat version 1.0\nfile '{secret}'\n",
            f"ffconcat version 1.0\nfile 'http://{url}'\n",
            f"ffconcat version 1.0\nfile 'tcp://{url}'\n",
            playlist.format(secret),
            playlist.format(f"http://{url}"),
            f'<?xml version="1.0"?><MPD type="static"><Period><AdaptationSet><BaseURL>http://{url}</BaseURL>'
            "<Representation id='1'/></AdaptationSet></Period></MPD>",
            "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=x\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=video 50044 RTP/AVP 96\r\n"
            "a=rtpmap:96 H264/90000\r\n",
            ";FFMETADATA1\ntitle=x\n",
            "1\n00:00:00,000 --> 00:00:01,000\nx\n",
            "WEBVTT\n\n00:00.000 --> 00:01.000\nx\n",
            f"RTSPtextrtsp://{url}\r\n",
            "[playlist]\nFile1=x\n",
        ]
        for text in texts:
            for decode in (decode_video, decode_audio):
                refused(text.encode(), "its format is not among those that can be read", decode)
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize("name", ["a.mxf", "a.nut", "a.yuv4mpegpipe", "a.rm", "a.ppm", "a.png", "a.jpg", "a.bmp"])
def test_formats_and_codecs_are_listed(tmp_path: Path, name: str) -> None:
    frames = ("-frames:v", "1") if name in ("a.ppm", "a.png", "a.jpg", "a.bmp") else ()
    arguments = ("-f", "yuv4mpegpipe") if name == "a.yuv4mpegpipe" else frames
    path = write_moving(tmp_path / name, *arguments, size="176x144")
    refused(path.read_bytes(), "its format is not among those that can be read")
    path = write_moving(tmp_path / "flashsv.mkv", "-c:v", "flashsv")
    refused(path.read_bytes(), "a codec that is not among those that can be read")
    path = write_sound(tmp_path / "wavpack.mka", "-c:a", "wavpack")
    refused(path.read_bytes(), "a codec that is not among those that can be read", decode_audio)


def test_a_mov_that_refers_to_another_file(tmp_path: Path) -> None:
    secret = write_moving(tmp_path / "secret.mp4", *X264)
    content = with_reference(secret.read_bytes(), str(secret).encode())
    start = content.index(b"mdat")
    end = start - 4 + int.from_bytes(content[start - 4 : start], "big")
    content = content[: start + 4] + bytes(end - start - 4) + content[end:]
    (tmp_path / "reference.mov").write_bytes(content)
    followed = {"enable_drefs": "1", "use_absolute_path": "1"}
    with av.open(str(tmp_path / "reference.mov"), options=followed) as container:
        assert sum(1 for _ in container.decode(video=0)) == 20, "the reference is right"
    refused(content, "the file has no frames")


def with_reference(content: bytes, path: bytes) -> bytes:
    """Let the boxes of a track refer to a path, as QuickTime's aliases do."""
    body = bytes(10) + b"\4" + b"disk".ljust(27, b"\0") + bytes(12) + b"\1" + b"x".ljust(63, b"\0") + bytes(16)
    body += struct.pack(">HH", 1, 1) + bytes(16) + struct.pack(">HH", 2, len(path)) + path + b"\0" * (len(path) % 2)
    alias = box(b"alis", bytes(4) + body + struct.pack(">HH", 0xFFFF, 0))
    changed, start = b"", 0
    while start + 8 <= len(content):
        end = start + int.from_bytes(content[start : start + 4], "big")
        kind, inside = content[start + 4 : start + 8], content[start + 8 : end]
        if kind in (b"moov", b"trak", b"mdia", b"minf", b"dinf"):
            inside = with_reference(inside, path)
        elif kind == b"dref":
            inside = bytes(4) + struct.pack(">I", 1) + alias
        changed += box(kind, inside.replace(b"isom", b"qt  ") if kind == b"ftyp" else inside)
        start = end
    return changed


def box(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", 8 + len(body)) + kind + body


# Tables and counts


def patched(content: bytes, kind: bytes, offset: int, *numbers: int) -> bytes:
    at = content.index(kind) + 4 + offset
    return content[:at] + struct.pack(f">{len(numbers)}I", *numbers) + content[at + 4 * len(numbers) :]


def test_tables_of_an_mp4_that_promise_more_than_they_hold(tmp_path: Path) -> None:
    """They end at most the process that decodes them."""
    whole = write_moving(tmp_path / "a.mp4", *X264).read_bytes()
    fragments = write_moving(tmp_path / "f.mp4", *X264, "-movflags", "frag_keyframe+empty_moov").read_bytes()
    nested = b""
    for _ in range(5000):
        nested = box(b"moov", nested)
    for content in (
        patched(whole, b"stsz", 8, 2**31),
        patched(whole, b"stsz", 4, 1, 2**31),
        patched(whole, b"elst", 4, 2**30),
        patched(fragments, b"trun", 4, 2**31 - 1),
        patched(fragments, b"trun", 0, 0, 2**30),
        whole.replace(b"mvhd", b"cmov"),
        box(b"ftyp", b"isom" + bytes(4)) + nested,
    ):
        (tmp_path / "hostile.mp4").write_bytes(content)
        with contextlib.suppress(InputError):
            load_video(tmp_path / "hostile.mp4", lambda _note: None)
    assert load_video(tmp_path / "a.mp4", pytest.fail).total_num_frames == 20


def test_numbers_of_packets_and_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = write_moving(tmp_path / "a.mkv", *X264).read_bytes()
    monkeypatch.setattr(video, "MAX_DECODED_PIXELS", 20 * 64 * 48 - 1)
    refused(content, "20 frames of 64x48 pixels; the maximum of all frames is")
    monkeypatch.setattr(video, "MAX_FRAMES", 19)
    refused(content, "more than 19 frames")
    monkeypatch.setattr(containers, "MAX_PACKETS", 18)
    refused(content, "more than 18 packets")
    sound = write_sound(tmp_path / "a.ogg").read_bytes()
    refused(sound, "more than 18 packets", decode_audio)
    monkeypatch.setattr(video, "MAX_FRAME_PIXELS", 1000)
    refused(content, "more than 18 packets")


def test_frames_that_are_large_or_change_their_size(tmp_path: Path) -> None:
    large = write_moving(tmp_path / "a.avi", "-c:v", "mjpeg", size="9216x4096", rate="4", seconds=0.25)
    refused(large.read_bytes(), "its frames are damaged, or have more than 35,389,440 pixels")
    large = write_moving(tmp_path / "a.mp4", *X264, "-preset", "ultrafast", size="9216x4096", rate="4", seconds=0.25)
    refused(large.read_bytes(), "9216x4096 pixels per frame; the maximum is 35389440 for 1 frames")
    refused(mjpeg([jpeg(64), jpeg(64), jpeg(640)]), "the size of the frames of the file changes in the middle")
    refused(mjpeg([jpeg_of_scans(800, 512)]), "101 scans or more of 262,144 pixels")


def jpeg(side: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (side, side)).save(file, "JPEG")
    return file.getvalue()


def mjpeg(frames: list[bytes]) -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format="avi") as container:
        stream = container.add_stream("mjpeg", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuvj420p"
        container.start_encoding()
        for index, content in enumerate(frames):
            packet = av.Packet(content)
            packet.stream, packet.pts, packet.dts, packet.time_base = stream, index, index, Fraction(1, 10)
            container.mux(packet)
    return file.getvalue()


def test_sound_of_many_channels_or_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the header of a FLAC, and while an Ogg is decoded, which takes no memory for what is not kept."""
    for rate, channels, seconds, message in (
        (384_000, 8, 100, "more than 230,400,000 samples in all channels"),
        (384_000, 2, 160, "more than 57,600,000 samples"),
        (8_000, 1, 601, "longer than 600 s"),
    ):
        content = bytearray(write_sound(tmp_path / "a.flac", rate=rate, channels=channels, seconds=0.01).read_bytes())
        (field,) = struct.unpack(">Q", content[18:26])  # 20 bits rate, 3 channels, 5 depth, 36 number of samples
        content[18:26] = struct.pack(">Q", field >> 36 << 36 | rate * seconds)
        with monkeypatch.context() as patch:
            patch.setattr(containers.Track, "frames", pytest.fail)
            refused(bytes(content), message, decode_audio)
    silence = ("-f", "lavfi", "-i", "anullsrc=r=48000:cl=32C:d=2")
    ffmpeg(*silence, tmp_path / "a.ogg")
    samples = decode_audio(io.BytesIO((tmp_path / "a.ogg").read_bytes()), "file").samples
    assert samples.shape == (96_000,)
    monkeypatch.setattr(audio, "MAX_DECODED_SAMPLES", 32 * 48_000)
    refused((tmp_path / "a.ogg").read_bytes(), "more than 1,536,000 samples in all channels", decode_audio)
    ffmpeg("-f", "lavfi", "-i", "anullsrc=r=48000:cl=40C:d=1", "-mapping_family", "255", tmp_path / "a.opus")
    refused((tmp_path / "a.opus").read_bytes(), "40 channels", decode_audio)


# Images


@pytest.fixture
def no_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("it is read by Pillow")

    monkeypatch.setattr(PIL.Image, "open", fail)


def gif(*blocks: bytes) -> bytes:
    head = b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0x80, 0, 0) + bytes((0, 0, 0, 255, 255, 255))
    return head + b"".join(blocks) + b"\x3b"


GIF_FRAME = b"\x2c" + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02\x44\x01\x00"


@pytest.mark.usefixtures("no_decoding")
def test_jpegs_of_too_many_scans() -> None:
    for content, message in (
        (jpeg_of_scans(20_000, 512), "101 scans or more of 262,144 pixels; the maximum is 100 scans"),
        (jpeg_of_scans(70, 4096), "65 scans or more of 16,777,216 pixels"),
    ):
        refused(content, message, decode_image)


def test_what_is_not_the_first_image_is_not_read() -> None:
    """Metadata of any size, and pages and frames without end, change nothing but the note."""
    row, plain = bytes(12), jpeg(8)
    bomb = png_chunk(b"iCCP", b"a\0\0" + bytes(1000)), png_chunk(b"zTXt", b"a\0\0" + bytes(1000))
    exif = b"II*\0\x08\0\0\0" + struct.pack("<H", 5000)
    exif += b"".join(struct.pack("<HHII", 300 + index, 7, 60_000, 0) for index in range(5000))
    segments = b"\xff\xe1" + struct.pack(">H", 64_000) + (b"Exif\0\0" + exif).ljust(63_998, b"\0")
    loop = tiff((3, 2), 8, 1, bytes(6), next_page=8)
    tags = {40_000 + index: (7, 5_000_000, 0) for index in range(20_000)}
    for content, size, has_more in (
        (png(4, 8, 2, [row] * 4, *bomb), (4, 4), False),
        (plain[:2] + segments * 3 + plain[2:], (8, 8), False),
        (plain[:20] + bytes(3_000_000) + plain[20:], (8, 8), False),
        (gif(GIF_FRAME * 100_000), (1, 1), True),
        (gif(b"\x21\xfe", b"\xff" + b"a" * 255, b"\0", GIF_FRAME), (1, 1), False),
        (loop, (2, 3), False),
        (tiff((3, 2), 8, 1, bytes(6), tags=tags), (2, 3), False),
    ):
        pixels, notes = decode_image(io.BytesIO(content), "image")
        assert pixels.shape == (*size, 3)
        assert bool(notes) == has_more


def test_images_that_are_larger_than_they_look() -> None:
    webp = b"RIFF" + struct.pack("<I", 42) + b"WEBPVP8X" + struct.pack("<II", 10, 2) + b"\xff\x3f\0\xff\x3f\0"
    wide = gif(b"\x2c" + struct.pack("<HHHHB", 0, 0, 60_000, 60_000, 0) + b"\x02\x02\x44\x01\x00")
    tiles = {322: (4, 1, 2**31), 323: (4, 1, 2**31), 324: (4, 1, 8), 325: (4, 1, 8)}
    for content in (webp, wide):
        refused(content, "too many pixels; the maximum is 64 Mi pixels", decode_image)
    refused(tiff((9000, 9000), 8, 1, b""), "9000x9000 pixels; the maximum is 64 Mi pixels", decode_image)
    refused(tiff((9, 9), 8, 1, b"", tags=tiles), "cannot read the file", decode_image)
    flat = np.zeros((9, 9), np.uint8)
    assert decode_image(io.BytesIO(png(9, 8, 0, [bytes(row) for row in flat])), "image")[0].shape == (9, 9, 3)
