"""Audio of every format, compared with FFmpeg's own output sample by sample."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import soundfile
from support.ffmpeg import decoded_sound, ffmpeg, write_moving, write_sound

from omni_cli.core.errors import InputError
from omni_cli.requests.media import audio as audio_module
from omni_cli.requests.media.audio import DecodedAudio, decode_audio, decode_sound

CODECS = {
    "cbr.mp3": ("-c:a", "libmp3lame"),
    "vbr.mp3": ("-c:a", "libmp3lame", "-q:a", "2"),
    "no-xing.mp3": ("-c:a", "libmp3lame", "-q:a", "2", "-write_xing", "0", "-id3v2_version", "0"),
    "aac.m4a": ("-c:a", "aac"),
    "aac.aac": ("-c:a", "aac"),
    "fragments.mp4": ("-c:a", "aac", "-movflags", "frag_keyframe+empty_moov"),
    "alac.m4a": ("-c:a", "alac"),
    "vorbis.ogg": ("-c:a", "libvorbis"),
    "opus.opus": ("-c:a", "libopus"),
    "opus.webm": ("-c:a", "libopus"),
    "vorbis.webm": ("-c:a", "libvorbis"),
    "flac.flac": (),
    "flac24.flac": ("-sample_fmt", "s32"),
    "flac.mkv": ("-c:a", "flac"),
    "flac.ogg": ("-c:a", "flac"),
    "pcm.mov": ("-c:a", "pcm_s24be"),
    "mp3.avi": ("-c:a", "mp3"),
    "ac3.mkv": ("-c:a", "ac3"),
    "aac.ts": ("-c:a", "aac"),
    "mp2.mpg": ("-c:a", "mp2"),
    "amr.amr": ("-ar", "8000", "-ac", "1", "-c:a", "libopencore_amrnb"),
    **{f"{name}.wav": ("-c:a", f"pcm_{name}") for name in ("u8", "s16le", "s24le", "s32le", "f32le", "f64le")},
    **{f"{name}.wav": ("-c:a", f"pcm_{name}") for name in ("alaw", "mulaw")},
    **{f"{name}.wav": ("-c:a", f"adpcm_{name}") for name in ("ms", "ima_wav")},
    **{f"pcm.{name}": () for name in ("aiff", "au", "caf", "w64")},
}


def decode(path: Path | bytes, **kwargs: Any) -> DecodedAudio:
    content = path if isinstance(path, bytes) else path.read_bytes()
    return decode_audio(io.BytesIO(content), "audio file", **kwargs)


@pytest.mark.parametrize("name", CODECS)
def test_samples_are_those_of_ffmpeg(tmp_path: Path, name: str) -> None:
    path = write_sound(tmp_path / name, *CODECS[name])
    decoded = decode(path, mono=False)
    np.testing.assert_array_equal(decoded.samples.reshape(-1), decoded_sound(path))
    assert not decoded.notes
    mean = decoded.samples.reshape(len(decoded.samples), -1).mean(axis=1, dtype=np.float32)
    np.testing.assert_array_equal(decode(path).samples, mean)


@pytest.mark.parametrize("name", ["aac.m4a", "vbr.mp3", "vorbis.ogg", "opus.opus", "flac.flac"])
@pytest.mark.parametrize(("rate", "channels"), [(16_000, 1), (48_000, 6)])
def test_rates_and_channels(tmp_path: Path, name: str, rate: int, channels: int) -> None:
    if name == "vbr.mp3":
        channels = 1
    path = write_sound(tmp_path / name, *CODECS[name], rate=rate, channels=channels)
    np.testing.assert_array_equal(decode(path, mono=False).samples.reshape(-1), decoded_sound(path))


def test_samples_are_whole_numbers_over_a_power_of_two(tmp_path: Path) -> None:
    """As libsndfile gives them."""
    samples = np.random.default_rng(0).uniform(-1, 1, (3000, 2))
    for name, subtypes in (("wav", ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ALAW", "ULAW")),
                           ("flac", ("PCM_S8", "PCM_16", "PCM_24"))):  # fmt: skip
        for subtype in subtypes:
            path = tmp_path / f"{subtype}.{name}"
            soundfile.write(path, samples, 22_050, subtype=subtype)
            expected, _ = soundfile.read(path, dtype="float32")
            np.testing.assert_array_equal(decode(path, mono=False).samples, expected)
            np.testing.assert_array_equal(decode(path).samples, expected.mean(axis=1, dtype=np.float32))


def test_sound_ends_where_the_encoder_padded_it(tmp_path: Path) -> None:
    """Also with Opus, where FFmpeg goes on to the end of the last packet."""
    for name, codec, rate in (("a.m4a", "aac", 44_100), ("o.mp4", "libopus", 48_000), ("e.mp4", "eac3", 48_000)):
        path = write_sound(tmp_path / name, "-c:a", codec, rate=rate, seconds=0.777)
        assert len(decode(path).samples) == int(0.777 * rate)


def test_pcm_of_more_samples_than_a_video_has_frames(tmp_path: Path) -> None:
    path = write_sound(tmp_path / "a.mov", "-c:a", "pcm_s16le", rate=48_000, channels=1, seconds=25)
    assert len(decode(path).samples) == 1_200_000


def test_parts_copied_out_of_files(tmp_path: Path) -> None:
    for name in ("aac.m4a", "vbr.mp3", "vorbis.ogg", "opus.opus", "opus.webm"):
        whole, part = write_sound(tmp_path / name, *CODECS[name]), tmp_path / f"part-{name}"
        ffmpeg("-ss", "0.4", "-i", whole, "-t", "0.5", "-c", "copy", part)
        np.testing.assert_array_equal(decode(part, mono=False).samples.reshape(-1), decoded_sound(part))


def test_files_one_after_the_other_in_one(tmp_path: Path) -> None:
    for name in ("no-xing.mp3", "vorbis.ogg", "aac.aac"):
        whole, both = write_sound(tmp_path / name, *CODECS[name]), tmp_path / f"both-{name}"
        both.write_bytes(whole.read_bytes() * 2)
        samples = decode(both, mono=False).samples
        np.testing.assert_array_equal(samples.reshape(-1), decoded_sound(both))
        assert len(samples) > 1.9 * len(decode(whole).samples)


@pytest.mark.parametrize("name", ["no-xing.mp3", "flac.ogg", "aac.aac"])
def test_parts_of_other_channels_or_rates(tmp_path: Path, name: str) -> None:
    parts = {
        key: write_sound(tmp_path / f"{key}-{name}", *CODECS[name], rate=key[0], channels=key[1])
        for key in ((48_000, 2), (48_000, 1), (24_000, 2))
    }
    first = parts.pop((48_000, 2))
    both = first.read_bytes() + parts[48_000, 1].read_bytes()
    assert len(decode(both).samples) == pytest.approx(2 * len(decode(first).samples), abs=5000)
    for content, mono in ((both, False), (first.read_bytes() + parts[24_000, 2].read_bytes(), True)):
        with pytest.raises(InputError, match="the sample rate or the number of channels of the audio file changes"):
            decode(content, mono=mono)


def wav(samples: np.ndarray, riff: int, data: int, *, listed: bool = False) -> bytes:
    """With `listed`, with a LIST chunk before the data, as FFmpeg writes it into a pipe."""
    head = b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 16_000, 32_000, 2, 16)
    if listed:
        head += b"LIST" + struct.pack("<I", 18) + b"INFOISFT" + struct.pack("<I", 6) + b"maker\0"
    return b"RIFF" + struct.pack("<I", riff) + head + b"data" + struct.pack("<I", data) + samples.tobytes()


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("data", [0, 0x7FFF0000, 0x7FFFFFFF - 36, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF - 36, 0xFFFFFFFF])
def test_wav_of_a_writer_that_could_not_fill_in_the_length(data: int, listed: bool) -> None:
    samples = np.arange(-4000, 4000, dtype="<i2")
    for riff in (0, 36, min(data + 36, 0xFFFFFFFF)):
        decoded = decode(wav(samples, riff, data, listed=listed))
        np.testing.assert_array_equal(decoded.samples, samples.astype(np.float32) / 2**15)


RAMP = np.arange(-4000, 4000)
PCM = bytes.fromhex("0100000000001000800000aa00389b71")
ID3 = b"ID3\x04\0\0\0\0\x01\x02" + bytes(130)


def packed(valid: int, bits: int, order: Literal["little", "big"]) -> bytes:
    """RAMP in the upper `valid` bits of `bits`."""
    return b"".join((int(value) << bits - 16).to_bytes(bits // 8, order, signed=True) for value in RAMP if valid)


def with_unused_bits(kind: str, valid: int, bits: int) -> bytes:
    head = struct.pack("<HHIIHHHHI", 0xFFFE, 1, 16_000, 2000 * bits, bits // 8, bits, 22, valid, 4) + PCM
    data = packed(valid, bits, "little")
    if kind == "w64":
        tail = bytes.fromhex("f3acd3118cd100c04f8edb8a")
        chunks = b"fmt " + tail + struct.pack("<Q", 24 + len(head)) + head
        chunks = b"wave" + tail + chunks.ljust(-(-len(chunks) // 8) * 8, b"\0")
        chunks += b"data" + tail + struct.pack("<Q", 24 + len(data)) + data
        return b"riff" + bytes.fromhex("2e91cf11a5d628db04c10000") + struct.pack("<Q", 24 + len(chunks)) + chunks
    before = b"ds64" + struct.pack("<IQQQI", 28, 0, len(data), len(RAMP), 0) if kind == "RF64" else b""
    size = 0xFFFFFFFF if kind == "RF64" else len(data)
    chunks = b"fmt " + struct.pack("<I", len(head)) + head + b"data" + struct.pack("<I", size) + data
    return kind.encode() + struct.pack("<I", min(size + 76, 0xFFFFFFFF)) + b"WAVE" + before + chunks


@pytest.mark.parametrize("bits", [(24, 32), (20, 32), (20, 24), (16, 24), (16, 32)])
@pytest.mark.parametrize("kind", ["RIFF", "RF64", "w64"])
def test_pcm_with_unused_bits(kind: str, bits: tuple[int, int]) -> None:
    np.testing.assert_array_equal(decode(with_unused_bits(kind, *bits)).samples, RAMP.astype(np.float32) / 2**15)


def test_wav_with_numbers_in_the_other_order() -> None:
    data = packed(16, 16, "big")
    head = b"fmt " + struct.pack(">IHHIIHH", 16, 1, 1, 16_000, 32_000, 2, 16) + b"data" + struct.pack(">I", len(data))
    content = b"RIFX" + struct.pack(">I", len(data) + 36) + b"WAVE" + head + data
    np.testing.assert_array_equal(decode(content).samples, RAMP.astype(np.float32) / 2**15)
    with pytest.raises(InputError, match="truncated"):
        decode(content[:-2])


@pytest.mark.parametrize("name", ["wav", "aiff", "flac"])
@pytest.mark.parametrize("tags", [1, 2])
def test_sound_behind_id3_tags(tmp_path: Path, name: str, tags: int) -> None:
    path = write_sound(tmp_path / f"a.{name}")
    np.testing.assert_array_equal(decode(tags * ID3 + path.read_bytes()).samples, decode(path).samples)
    with pytest.raises(InputError, match="truncated"):
        decode(tags * ID3 + path.read_bytes()[:-4000])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # soundfile seeks beyond the end of W64
@pytest.mark.parametrize("name", ["caf", "aiff", "w64", "au", "wav", "flac"])
def test_sound_through_a_pipe(tmp_path: Path, name: str) -> None:
    path = write_sound(tmp_path / f"whole.{name}")
    (tmp_path / f"piped.{name}").write_bytes(ffmpeg("-i", path, "-c:a", "copy", "-f", name, "-"))
    with (tmp_path / f"piped.{name}").open("rb") as file:
        np.testing.assert_array_equal(decode_audio(file, "audio file").samples, decode(path).samples)


@pytest.mark.parametrize(("frames", "sizes"), [(0x3F800000, 0x7F000000), (0, 0), (0xFFFFFFFF, 0xFFFFFFFF)])
def test_aiff_of_a_writer_that_could_not_fill_in_the_length(frames: int, sizes: int) -> None:
    common = struct.pack(">hIh", 1, frames, 16) + struct.pack(">HQ", 16383 + 13, 16_000 << 50)
    sound = b"SSND" + struct.pack(">III", min(sizes + 8, 0xFFFFFFFF) if sizes else 0, 0, 0) + packed(16, 16, "big")
    head = b"FORM" + struct.pack(">I", min(sizes + 46, 0xFFFFFFFF) if sizes else 0) + b"AIFFCOMM"
    content = head + struct.pack(">I", len(common)) + common + sound
    np.testing.assert_array_equal(decode(content).samples, RAMP.astype(np.float32) / 2**15)


def test_a_file_on_disk_with_a_chunk_beyond_its_end(tmp_path: Path) -> None:
    """Systems refuse to seek that far; in memory all places can be sought."""
    path = write_sound(tmp_path / "a.caf")
    content = path.read_bytes()
    start = content.index(b"data") + 4
    path.write_bytes(content[:start] + struct.pack(">q", -1) + content[start + 8 :])
    with path.open("rb") as file:
        assert len(decode_audio(file, "audio file").samples) == len(decode(content).samples)


def test_flac_without_a_total(tmp_path: Path) -> None:
    path = write_sound(tmp_path / "whole.flac")
    content = bytearray(path.read_bytes())
    (field,) = struct.unpack(">Q", content[18:26])  # 20 bits rate, 3 channels, 5 depth, 36 number of samples
    content[18:26] = struct.pack(">Q", field >> 36 << 36)
    np.testing.assert_array_equal(decode(bytes(content)).samples, decode(path).samples)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_mp3_of_a_varying_rate_without_a_xing_header_is_not_cut(tmp_path: Path, order: tuple[int, int]) -> None:
    parts = [
        write_sound(tmp_path / f"{kbps}.mp3", "-b:a", f"{kbps}k", "-write_xing", "0", "-id3v2_version", "0",
                    seconds=seconds, channels=1).read_bytes()
        for kbps, seconds in ((320, 1), (48, 5))
    ]  # fmt: skip
    assert len(decode(b"".join(parts[index] for index in order)).samples) / 44_100 == pytest.approx(6, abs=0.1)


def test_itunes_gives_the_number_of_samples(tmp_path: Path) -> None:
    """A file by iTunes has no edit list, but a tag with the padding before and after, and the samples between."""
    path = write_sound(tmp_path / "a.m4a", "-c:a", "aac", "-use_editlist", "0", seconds=1.0)
    content = path.read_bytes()
    value = b" 00000000 00000400 00000000 000000000000AC44" + b" 00000000" * 8
    pieces = {
        b"mean": bytes(4) + b"com.apple.iTunes",
        b"name": bytes(4) + b"iTunSMPB",
        b"data": b"\0\0\0\1" + bytes(4) + value,
    }
    tag = box(b"----", b"".join(box(kind, body) for kind, body in pieces.items()))
    handler = box(b"hdlr", bytes(8) + b"mdirappl" + bytes(9))
    extra = box(b"udta", box(b"meta", bytes(4) + handler + box(b"ilst", tag)))
    start = content.index(b"moov") - 4
    moov = content[start:].replace(b"udta", b"free")
    tagged = content[:start] + struct.pack(">I", len(moov) + len(extra)) + moov[4:] + extra
    (tmp_path / "tagged.m4a").write_bytes(tagged)
    samples = decode(tagged).samples
    np.testing.assert_array_equal(samples, decode(path).samples[1024 : 1024 + 0xAC44])
    np.testing.assert_array_equal(
        decode(tagged, mono=False).samples.reshape(-1), decoded_sound(tmp_path / "tagged.m4a")
    )


def box(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", 8 + len(body)) + kind + body


def test_sound_of_a_video(tmp_path: Path) -> None:
    silent = write_moving(tmp_path / "silent.mp4", "-c:v", "libx264")
    path = tmp_path / "with.mkv"
    ffmpeg("-i", silent, "-i", write_sound(tmp_path / "a.wav"), "-c:v", "copy", "-c:a", "libvorbis", path)
    sound = decode_sound(io.BytesIO(path.read_bytes()), "video file")
    assert sound is not None and sound.samples.shape[1] == 2
    np.testing.assert_array_equal(sound.samples.reshape(-1), decoded_sound(path))
    np.testing.assert_array_equal(decode(path).samples, sound.samples.mean(axis=1, dtype=np.float32))
    assert decode_sound(io.BytesIO(silent.read_bytes()), "video file") is None
    with pytest.raises(InputError, match="has no audio stream"):
        decode(silent)
    with pytest.raises(InputError, match=r"the sound of the video file is longer than 0\.5 s"):
        decode_sound(io.BytesIO(path.read_bytes()), "video file", max_s=0.5)


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    one = write_sound(tmp_path / "one.wav")
    ffmpeg("-i", one, "-i", one, "-map", "0", "-map", "1", "-c:a", "aac", tmp_path / "two.mp4")
    assert decode(tmp_path / "two.mp4").notes == ("the audio file has 2 audio streams; only one is used",)
    content = bytearray(write_sound(tmp_path / "whole.mp3").read_bytes())
    content[9000:9400] = np.random.default_rng(0).bytes(400)
    decoded = decode(bytes(content))
    assert len(decoded.samples) > 44_100 and "the audio file is damaged" in decoded.notes[0]


@pytest.mark.parametrize("name", ["wav", "flac", "aiff", "au", "caf", "w64", "m4a", "mka", "webm"])
def test_a_file_that_ends_early_is_not_cut_silently(tmp_path: Path, name: str) -> None:
    arguments = ("-movflags", "+faststart") if name == "m4a" else ()
    content = write_sound(tmp_path / f"a.{name}", *arguments).read_bytes()
    for length in (len(content) // 2, len(content) * 9 // 10):
        with pytest.raises(InputError, match="the audio file is truncated"):
            decode(content[:length])


def test_unusable_audio() -> None:
    def written(samples: np.ndarray, rate: int = 16_000) -> bytes:
        file = io.BytesIO()
        soundfile.write(file, samples, rate, format="WAV", subtype="FLOAT")
        return file.getvalue()

    cases = {
        "cannot read the audio file": (b"", b"this is not audio, whatever its name says", b"RIFF\0\0\0\0WAVE"),
        "no samples": (written(np.zeros(0)),),
        "NaN or infinite": (written(np.array([0.0, np.nan])), written(np.array([0.0, np.inf]))),
        "sample rate of 8 Hz": (written(np.zeros(10), 8),),
        "64 channels": (written(np.zeros((10, 64))),),
        "longer than 1 s": (written(np.zeros(16_100)),),
    }
    for message, contents in cases.items():
        for content in contents:
            with pytest.raises(InputError, match=message):
                decode(content, max_s=1.0)


def test_too_many_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_sound(tmp_path / "a.ogg", channels=6, seconds=1.0)
    monkeypatch.setattr(audio_module, "MAX_SAMPLES", 44_100)
    assert len(decode(path).samples) == 44_100
    with pytest.raises(InputError, match="has more than 44,100 samples, the maximum"):
        decode(path, mono=False)
    monkeypatch.setattr(audio_module, "MAX_DECODED_SAMPLES", 5 * 44_100)
    with pytest.raises(InputError, match="more than 220,500 samples in all channels"):
        decode(path)


@pytest.mark.parametrize(("name", "codec"), [("mp4", "aac"), ("mov", "pcm_s16le"), ("mkv", "pcm_s16le"), ("ts", "aac")])
def test_sound_that_begins_after_the_frames_keeps_its_place(tmp_path: Path, name: str, codec: str) -> None:
    frames = write_moving(tmp_path / "frames.mp4", "-c:v", "libx264", "-bf", "0", seconds=3)
    sound = write_sound(tmp_path / "a.wav", seconds=1.0, rate=16_000)
    both = ("-map", "0:v", "-map", "1:a", "-c:v", "copy", "-c:a", codec)
    ffmpeg("-i", frames, "-itsoffset", "1.5", "-i", sound, *both, tmp_path / f"late.{name}")
    ffmpeg("-itsoffset", "1.5", "-i", frames, "-i", sound, *both, tmp_path / f"early.{name}")
    late, early = decode(tmp_path / f"late.{name}"), decode(tmp_path / f"early.{name}")
    begin = np.flatnonzero(np.abs(late.samples) > 0.05)[0] / 16_000
    assert begin == pytest.approx(1.5, abs=0.05)
    for decoded, when in ((late, "after"), (early, "before")):
        (note,) = decoded.notes
        assert f"s {when} the frames" in note
    video = decode_sound(io.BytesIO((tmp_path / f"late.{name}").read_bytes()), "video file")
    assert video is not None and len(video.samples) == len(late.samples)


def test_links_of_another_rate_or_codec_are_refused_in_our_words(tmp_path: Path) -> None:
    first = write_sound(tmp_path / "a.ogg", "-c:a", "libvorbis", rate=16_000).read_bytes()
    for name, codec, rate in (("b.ogg", "libvorbis", 48_000), ("b.opus", "libopus", 48_000)):
        second = write_sound(tmp_path / name, "-c:a", codec, rate=rate).read_bytes()
        with pytest.raises(InputError, match="its codec, sample rate or channels change in the middle") as raised:
            decode(first + second)
        assert raised.value.hint == "save it as one WAV file, or cut it where it changes"
