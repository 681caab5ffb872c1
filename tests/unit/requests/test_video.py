"""Videos as players show them, compared with FFmpeg's own output frame by frame."""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np
import pytest
from PIL import Image
from support.ffmpeg import decoded_frames, ffmpeg, write_moving, write_sound

from omni_cli.core.errors import InputError
from omni_cli.requests.contents import Video
from omni_cli.requests.media.video import decode_video

X264 = ("-c:v", "libx264", "-pix_fmt", "yuv420p", "-threads", "1")
CODECS = {
    "h264.mp4": X264,
    "b-frames.mkv": (*X264, "-bf", "3"),
    "fragments.mp4": (*X264, "-movflags", "frag_keyframe+empty_moov"),
    "open-gop.ts": (*X264, "-x264-params", "open-gop=1:keyint=10:bframes=3"),
    "interlaced.ts": (*X264, "-flags", "+ilme+ildct", "-x264-params", "tff=1"),
    "ten-bit.mkv": ("-c:v", "libx264", "-pix_fmt", "yuv420p10le"),
    "bt709.mp4": (*X264, "-colorspace", "bt709", "-color_primaries", "bt709", "-color_trc", "bt709"),
    "full-range.mp4": ("-c:v", "libx264", "-pix_fmt", "yuvj420p"),
    "hevc.mp4": ("-c:v", "libx265", "-pix_fmt", "yuv420p10le", "-x265-params", "log-level=error"),
    "vp8.webm": ("-c:v", "libvpx", "-auto-alt-ref", "1", "-lag-in-frames", "16"),
    "vp9.webm": ("-c:v", "libvpx-vp9", "-auto-alt-ref", "1", "-lag-in-frames", "16"),
    "av1.mp4": ("-c:v", "libaom-av1", "-cpu-used", "8"),
    "theora.ogv": ("-c:v", "libtheora"),
    "mpeg4.avi": ("-c:v", "mpeg4", "-bf", "2"),
    "mpeg2.mpg": ("-c:v", "mpeg2video", "-flags", "+ilme+ildct", "-bf", "2"),
    "prores.mov": ("-c:v", "prores_ks", "-pix_fmt", "yuv422p10le"),
    "mjpeg.avi": ("-c:v", "mjpeg"),
    "ffv1.mkv": ("-c:v", "ffv1"),
    "raw.avi": ("-c:v", "rawvideo", "-pix_fmt", "bgr24"),
    "h263.3gp": ("-c:v", "h263"),
    "a.gif": (),
    "a.apng": ("-f", "apng"),
}


class Decoded(NamedTuple):
    video: Video
    notes: tuple[str, ...]


def decode(path: Path, indices: Sequence[int] | None = None, **kwargs: Any) -> Decoded:
    return Decoded(*decode_video(io.BytesIO(path.read_bytes()), "video file", indices=indices, **kwargs))


def check_against_ffmpeg(path: Path) -> Decoded:
    decoded = decode(path)
    frames = decoded.video.frames
    np.testing.assert_array_equal(frames, decoded_frames(path, *frames.shape[1:3]))
    assert decoded.video.total_num_frames == len(frames)
    assert decoded.video.frames_indices == tuple(range(len(frames)))
    return decoded


@pytest.mark.parametrize("name", CODECS)
def test_frames_are_those_of_ffmpeg(tmp_path: Path, name: str) -> None:
    size = "176x144" if name == "h263.3gp" else "64x48"
    decoded = check_against_ffmpeg(write_moving(tmp_path / name, *CODECS[name], size=size))
    if name != "theora.ogv":  # its empty packets, which repeat a frame, are left out by ffmpeg, too
        assert (len(decoded.video.frames), decoded.video.fps, decoded.notes) == (20, 25.0, ())


@pytest.mark.parametrize(("name", "pixels"), [("a.mp4", "yuv444p"), ("a.webm", "yuv420p")])
def test_odd_sizes(tmp_path: Path, name: str, pixels: str) -> None:
    codec = "libvpx-vp9" if name == "a.webm" else "libx264"
    crop = ("-vf", "crop=61:47:0:0:exact=1", "-c:v", codec, "-pix_fmt", pixels)
    assert check_against_ffmpeg(write_moving(tmp_path / name, *crop)).video.frames.shape[1:3] == (47, 61)


@pytest.mark.parametrize(("source", "name"), [
    ("b-frames.mkv", "a.mp4"), ("b-frames.mkv", "a.mkv"), ("h264.mp4", "a.mov"), ("vp9.webm", "a.webm"),
    ("av1.mp4", "a.mp4"), ("open-gop.ts", "a.mp4"), ("open-gop.ts", "a.ts"), ("mpeg4.avi", "a.avi"),
])  # fmt: skip
def test_parts_that_were_cut_without_encoding_them_again(tmp_path: Path, source: str, name: str) -> None:
    whole = write_moving(tmp_path / f"whole-{source}", *CODECS[source], "-g", "10", seconds=1.6)
    ffmpeg("-ss", "0.56", "-i", whole, "-c", "copy", tmp_path / name)
    video = check_against_ffmpeg(tmp_path / name).video
    # From the key frame on, or with an edit list from the very frame; an open group has lost what it refers to.
    assert 5 < len(video.frames) < 38 and video.fps == pytest.approx(25, abs=0.5)
    assert len(check_against_ffmpeg(tmp_path / name).video.frames) == video.total_num_frames
    four = decode(tmp_path / name, (0, 2, 2, 4)).video
    assert four.total_num_frames == len(video.frames) and len(four.frames) == 4
    np.testing.assert_array_equal(four.frames, video.frames[list(four.frames_indices)])


def test_an_edit_list_hides_frames(tmp_path: Path) -> None:
    whole = write_moving(tmp_path / "whole.mp4", *X264, "-g", "8", rate="10", seconds=2.4)
    ffmpeg("-ss", "1.2", "-i", whole, "-c", "copy", tmp_path / "part.mp4")
    shown = decode(whole).video.frames
    np.testing.assert_array_equal(check_against_ffmpeg(tmp_path / "part.mp4").video.frames, shown[12:])


def test_a_recording_that_began_between_key_frames(tmp_path: Path) -> None:
    whole = write_moving(tmp_path / "whole.mkv", *X264, "-g", "8", rate="10", seconds=2.4)
    with av.open(str(whole)) as before, av.open(str(tmp_path / "late.mkv"), "w") as after:
        copy = after.add_stream_from_template(before.streams.video[0])
        for packet in [packet for packet in before.demux() if packet.size][4:]:
            packet.stream = copy
            after.mux(packet)
    video = check_against_ffmpeg(tmp_path / "late.mkv").video
    np.testing.assert_array_equal(video.frames, decode(whole).video.frames[8:])
    assert video.fps == 10.0


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
def test_a_varying_frame_rate(tmp_path: Path, name: str) -> None:
    """20 frames in 0.8 s, then every fifth to 2 s: 26 frames, whose rate is that of the time they take."""
    chosen = ("-vf", "select='not(mod(n,5))+lt(n,20)'", "-fps_mode", "vfr")
    video = check_against_ffmpeg(write_moving(tmp_path / name, *chosen, *X264, seconds=2)).video
    assert len(video.frames) == 26 and video.fps == pytest.approx(25 / 1.8, abs=0.01)
    few = decode(tmp_path / name, (0, 5, 25)).video
    with av.open(str(tmp_path / name)) as container:
        rate = container.streams.video[0].average_rate
    assert (few.frames_indices, few.total_num_frames, few.fps) == ((0, 5, 25), 26, pytest.approx(float(rate)))


def test_the_rate_of_the_header_where_times_are_rounded(tmp_path: Path) -> None:
    for name in ("a.mp4", "a.mkv", "a.webm"):
        codec = ("-c:v", "libvpx") if name == "a.webm" else X264
        path = write_moving(tmp_path / name, *codec, rate="30000/1001")
        assert decode(path).video.fps == pytest.approx(30000 / 1001, abs=1e-9)


# How a track header's a, b, c, d, x, y, turns and mirrors an image of this width and height.
WIDTH, HEIGHT = 64, 48
MATRICES = {
    "plain": ((1, 0, 0, 1, 0, 0), lambda p: p),
    "mirror": ((-1, 0, 0, 1, WIDTH, 0), lambda p: p[:, ::-1]),
    "half turn": ((-1, 0, 0, -1, WIDTH, HEIGHT), lambda p: p[::-1, ::-1]),
    "upside down": ((1, 0, 0, -1, 0, HEIGHT), lambda p: p[::-1]),
    "transposed": ((0, 1, 1, 0, 0, 0), lambda p: p.transpose(1, 0, 2)),
    "right": ((0, 1, -1, 0, HEIGHT, 0), lambda p: np.rot90(p, -1)),
    "left": ((0, -1, 1, 0, 0, WIDTH), lambda p: np.rot90(p)),
    "anti-transposed": ((0, -1, -1, 0, HEIGHT, WIDTH), lambda p: np.rot90(p, 2).transpose(1, 0, 2)),
}


@pytest.mark.parametrize("name", MATRICES)
def test_display_matrices(tmp_path: Path, name: str) -> None:
    path = write_moving(tmp_path / "a.mp4", "-c:v", "libx264", "-pix_fmt", "yuv444p")
    plain = decode(path).video.frames
    matrix, change = MATRICES[name]
    with_matrix(path, matrix)
    turned = check_against_ffmpeg(path)
    np.testing.assert_array_equal(turned.video.frames, np.stack([change(frame) for frame in plain]))
    assert not turned.notes


def with_matrix(path: Path, matrix: tuple[float, ...]) -> None:
    content = bytearray(path.read_bytes())
    start = content.index(b"tkhd") + 4
    a, b, c, d, x, y = (round(value * 65536) for value in matrix)
    struct.pack_into(">9i", content, start + 40, a, b, 0, c, d, 0, x, y, 1 << 30)
    path.write_bytes(content)


def test_a_turn_by_another_angle_is_said(tmp_path: Path) -> None:
    path = write_moving(tmp_path / "a.mp4", *X264)
    with_matrix(path, (0.966, 0.259, -0.259, 0.966, 0, 0))
    decoded = decode(path)
    assert "turned by an angle between quarter turns" in decoded.notes[0]
    assert decoded.video.frames.shape[1:3] == (HEIGHT, WIDTH)


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_exif_within_frames(tmp_path: Path, orientation: int) -> None:
    """A kind of metadata that PyAV does not know."""
    exif = Image.Exif()
    exif[0x112] = orientation
    file = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 255, (HEIGHT, WIDTH, 3), np.uint8)
    Image.fromarray(pixels).save(file, "JPEG", exif=exif)
    write_packets(tmp_path / "a.avi", "mjpeg", [file.getvalue()] * 3)
    check_against_ffmpeg(tmp_path / "a.avi")


def write_packets(path: Path, codec: str, packets: list[bytes]) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=10)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuvj420p"
        container.start_encoding()
        for index, content in enumerate(packets):
            packet = av.Packet(content)
            packet.stream, packet.pts, packet.dts, packet.time_base = stream, index, index, Fraction(1, 10)
            container.mux(packet)


@pytest.mark.parametrize("name", ["a.mov", "a.apng"])
def test_transparency_is_put_on_white_and_said(tmp_path: Path, name: str) -> None:
    clear = "format=rgba,geq=r='r(X,Y)':g='g(X,Y)':b='b(X,Y)':a='4*X'"
    codec = ("-c:v", "qtrle", "-pix_fmt", "argb") if name == "a.mov" else ("-f", "apng")
    path = write_moving(tmp_path / name, "-vf", clear, *codec)
    decoded = decode(path)
    raw = ffmpeg("-i", path, "-f", "rawvideo", "-pix_fmt", "rgba", "-")
    colours = np.frombuffer(raw, np.uint8).reshape(-1, HEIGHT, WIDTH, 4).astype(float)
    alpha = colours[..., 3:] / 255
    assert np.abs(colours[..., :3] * alpha + 255 * (1 - alpha) - decoded.video.frames).max() <= 0.5
    assert decoded.notes == ("the transparency of the video file was put on white",)


def test_sound_and_further_streams_are_not_dropped_silently(tmp_path: Path) -> None:
    silent = write_moving(tmp_path / "silent.mp4", *X264)
    streams = ("-i", silent, "-i", silent, "-i", write_sound(tmp_path / "a.wav"), "-map", "0", "-map", "1", "-map", "2")
    ffmpeg(*streams, "-c:v", "copy", tmp_path / "all.mkv")
    assert decode(tmp_path / "all.mkv").notes == (
        "the video file has 2 video streams; only one is used",
        "the video file has sound, which is not used",
    )


def test_damage_is_said(tmp_path: Path) -> None:
    path = write_moving(tmp_path / "a.mkv", *X264, seconds=2)
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 40] = bytes(40)
    path.write_bytes(content)
    decoded = check_against_ffmpeg(path)
    assert "the video file is damaged" in decoded.notes[0]


def test_some_frames_of_a_long_video(tmp_path: Path) -> None:
    path = write_moving(tmp_path / "a.mkv", *X264, seconds=2)
    every, some, none = decode(path).video, decode(path, (3, 3, 40, 49)).video, decode(path, ()).video
    assert (some.frames_indices, some.total_num_frames) == ((3, 3, 40, 49), 50)
    np.testing.assert_array_equal(some.frames, every.frames[[3, 3, 40, 49]])
    assert (none.frames.shape, none.total_num_frames, none.fps) == ((0, *every.frames.shape[1:]), 50, 25.0)


@pytest.mark.parametrize("name", ["h264.mp4", "b-frames.mkv", "fragments.mp4", "vp9.webm", "mpeg4.avi", "prores.mov"])
def test_a_file_that_ends_early_is_not_cut_silently(tmp_path: Path, name: str) -> None:
    arguments = ("-movflags", "+faststart") if name == "h264.mp4" else ()
    path = write_moving(tmp_path / name, *CODECS[name], *arguments)
    content = path.read_bytes()
    for length in (len(content) // 2, len(content) * 9 // 10):
        path.write_bytes(content[:length])
        with pytest.raises(InputError, match="the video file is truncated"):
            decode(path)


def test_a_recording_without_sizes_that_was_stopped(tmp_path: Path) -> None:
    """As a killed recorder leaves it: it does not state its length."""
    path = write_moving(tmp_path / "a.mkv", *X264, "-g", "5", "-live", "1", seconds=2)
    path.write_bytes(path.read_bytes()[:-3000])
    assert 30 < len(check_against_ffmpeg(path).video.frames) < 50


def test_unusable_videos(tmp_path: Path) -> None:
    path = write_moving(tmp_path / "a.mkv", *X264)
    cover = write_sound(tmp_path / "a.mp3", "-c:a", "libmp3lame")
    ffmpeg("-i", cover, "-i", path, "-map", "0:a", "-map", "1:v", "-frames:v", "1", "-c:v", "mjpeg", "-disposition:v",
           "attached_pic", tmp_path / "cover.mp3")  # fmt: skip
    (tmp_path / "text.mp4").write_text("no video at all")
    cases = {"text.mp4": "cannot read the video file", "a.mp3": "no video stream", "cover.mp3": "no video stream"}
    for name, message in cases.items():
        with pytest.raises(InputError, match=message):
            decode(tmp_path / name)
    with pytest.raises(InputError, match="64x48 pixels per frame; the maximum is 51 for 20 frames"):
        decode(path, max_pixels=1024)
    with pytest.raises(InputError, match=r"longer than 0 s|longer than 1 s"):
        decode(path, max_s=0.5)
