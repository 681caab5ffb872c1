"""Output files: whole or not at all, inside their folder, readable by other programs."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from omni_cli.cli.artifacts import ArtifactWriter, file_stems, folder_if_used
from omni_cli.core.errors import OmniError, OutputError
from omni_cli.core.files import write_whole
from omni_cli.requests.encoding import encode_wav
from omni_cli.requests.outputs import AudioOutput, ImageOutput, TensorOutput

needs_permissions = pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")


def test_wav_is_16_bit_pcm_and_close_to_the_samples(tmp_path: Path) -> None:
    samples = np.linspace(-1, 1, 2401, dtype=np.float32)
    path = ArtifactWriter(tmp_path, ["0"]).write("0", AudioOutput(samples, 24000))
    info = soundfile.info(path)
    assert (info.samplerate, info.channels, info.subtype, info.frames) == (24000, 1, "PCM_16", 2401)
    read, _ = soundfile.read(path, dtype="int16")
    np.testing.assert_allclose(read / 32767, samples, atol=0.5 / 32767 + 1e-7)


def test_samples_out_of_range_are_clipped_not_wrapped(tmp_path: Path) -> None:
    path = ArtifactWriter(tmp_path, ["0"]).write("0", AudioOutput(np.array([1.5, -1.5], np.float32), 24000))
    assert soundfile.read(path, dtype="int16")[0].tolist() == [32767, -32767]


def test_audio_of_no_samples_is_a_readable_file(tmp_path: Path) -> None:
    path = ArtifactWriter(tmp_path, ["0"]).write("0", AudioOutput(np.zeros(0, np.float32), 24000))
    assert soundfile.info(path).frames == 0


def test_audio_that_is_not_numbers_is_an_error_and_no_file(tmp_path: Path) -> None:
    with pytest.raises(OmniError, match="NaN or infinite"):
        ArtifactWriter(tmp_path, ["0"]).write("0", AudioOutput(np.array([np.nan], np.float32), 24000))
    assert list(tmp_path.iterdir()) == []


def test_png_contains_exactly_the_pixels(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    path = ArtifactWriter(tmp_path, ["0"]).write("0", ImageOutput(pixels))
    assert path == tmp_path / "0.png"
    np.testing.assert_array_equal(np.asarray(Image.open(path)), pixels)


def test_a_tensor_is_a_numpy_file_with_its_name(tmp_path: Path) -> None:
    array = np.random.default_rng(0).standard_normal((1, 3), dtype=np.float32)
    path = ArtifactWriter(tmp_path, ["0"]).write("0", TensorOutput("image_embeds", array))
    assert path == tmp_path / "0.image_embeds.npy"
    np.testing.assert_array_equal(np.load(path, allow_pickle=False), array)


def test_second_output_of_a_kind_gets_its_own_file(tmp_path: Path) -> None:
    writer = ArtifactWriter(tmp_path, ["a"])
    image = ImageOutput(np.zeros((2, 2, 3), np.uint8))
    names = [writer.write("a", image).name for _ in range(2)]
    names.append(writer.write("a", AudioOutput(np.zeros(1, np.float32), 24000)).name)
    assert names == ["a.png", "a.1.png", "a.wav"]


def test_plain_ids_are_their_own_names() -> None:
    ids = ["0", "take-2", "a.b_c"]
    assert file_stems(ids) == {request_id: request_id for request_id in ids}


HOSTILE = [
    "../../etc/passwd",
    "/abs",
    "..",
    ".",
    "a/b",
    "a_b",
    "A_B",
    "CON",
    "con.x",
    ".hidden",
    "x" * 200,
    "é",
    " ",
    "-f",
]


def test_no_id_leaves_the_folder_or_shares_a_file(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    writer = ArtifactWriter(folder, HOSTILE)
    writer.prepare()
    paths = [writer.write(request_id, ImageOutput(np.zeros((1, 1, 3), np.uint8))) for request_id in HOSTILE]
    assert {path.resolve().parent for path in paths} == {folder.resolve()}
    assert len({path.name.casefold() for path in paths}) == len(HOSTILE)
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in paths)
    assert all(len(path.name) <= 100 and not path.name.startswith((".", "-")) for path in paths)


def test_names_do_not_depend_on_the_other_requests_unless_they_clash() -> None:
    assert file_stems(["x/y"])["x/y"] == file_stems(["q", "x/y", "z"])["x/y"]


def test_file_permissions_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "file", b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


def test_prepare_leaves_nothing_and_the_first_file_makes_the_folder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    writer = ArtifactWriter(tmp_path / "a" / "b" / "c", ["0"])
    writer.prepare()
    assert [path.name for path in tmp_path.rglob("*")] == ["a"]
    assert writer.write("0", ImageOutput(np.zeros((1, 1, 3), np.uint8))).is_file()


def test_a_folder_stays_if_it_was_used_or_there_before(tmp_path: Path) -> None:
    with folder_if_used(tmp_path / "a" / "b"):
        (tmp_path / "a" / "file").touch()
    with folder_if_used(tmp_path / "a"):
        (tmp_path / "a" / "file").unlink()
    assert [path.name for path in tmp_path.rglob("*")] == ["a"]


def test_unusable_output_folders(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere" / "x")
    wrong = ("file", "file/below", "dangling", "a\0b")
    for folder in (Path("/proc/omni"), *(tmp_path / name for name in wrong)):
        with pytest.raises(OutputError, match="cannot write"):
            ArtifactWriter(folder, []).prepare()


@needs_permissions
def test_folder_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(OutputError, match="Permission denied"):
            ArtifactWriter(tmp_path, []).prepare()
    finally:
        tmp_path.chmod(0o700)


def test_a_full_disk_is_an_output_error_and_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = ArtifactWriter(tmp_path, ["0"])
    old = writer.write("0", ImageOutput(np.zeros((1, 1, 3), np.uint8))).read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="No space left on device"):
        ArtifactWriter(tmp_path, ["0"]).write("0", ImageOutput(np.ones((9, 9, 3), np.uint8)))
    assert [path.name for path in tmp_path.iterdir()] == ["0.png"]
    assert (tmp_path / "0.png").read_bytes() == old


def test_an_interrupt_while_writing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "file", b"x")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_the_place_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "0.png").mkdir()
    with pytest.raises(OutputError, match=r"0\.png"):
        ArtifactWriter(tmp_path, ["0"], overwrite=True).write("0", ImageOutput(np.zeros((1, 1, 3), np.uint8)))
    assert [path.name for path in tmp_path.iterdir()] == ["0.png"]


def test_encoding_is_deterministic() -> None:
    samples = np.random.default_rng(1).uniform(-1, 1, 100).astype(np.float32)
    assert encode_wav(samples, 24000) == encode_wav(samples, 24000)


PIXEL = ImageOutput(np.zeros((1, 1, 3), np.uint8))


def write_all(folder: Path, ids: list[str], **options: bool) -> list[str]:
    writer = ArtifactWriter(folder, ids, **options)
    writer.prepare()
    return [writer.write(name, PIXEL).name for name in ids]


def test_a_second_run_has_names_of_its_own_in_all_its_files(tmp_path: Path) -> None:
    assert write_all(tmp_path, ["0", "1"]) == ["0.png", "1.png"]
    note = ArtifactWriter(tmp_path, ["1", "2"]).prepare()
    assert note is not None and "names of this one end in -2" in note and "--overwrite" in note
    assert write_all(tmp_path, ["1", "2"]) == ["1-2.png", "2-2.png"]
    assert write_all(tmp_path, ["2"]) == ["2.png"]
    assert write_all(tmp_path, ["1"]) == ["1-3.png"]
    assert write_all(tmp_path, ["1", "2"], overwrite=True) == ["1.png", "2.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "0.png",
        "1-2.png",
        "1-3.png",
        "1.png",
        "2-2.png",
        "2.png",
    ]


def test_the_other_kinds_of_files_of_an_earlier_request_are_not_mixed_with_new_ones(tmp_path: Path) -> None:
    ArtifactWriter(tmp_path, ["a.b"]).write("a.b", AudioOutput(np.zeros(1, np.float32), 24000))
    assert write_all(tmp_path, ["a.b"]) == ["a.b-2.png"]
    (tmp_path / "notes.txt").touch()
    assert write_all(tmp_path, ["notes"]) == ["notes.png"]


def test_two_runs_at_once_do_not_overwrite_each_other(tmp_path: Path) -> None:
    first, second = (ArtifactWriter(tmp_path, ["0", "1"]) for _ in range(2))
    assert first.prepare() is second.prepare() is None
    assert [writer.write("0", PIXEL).name for writer in (first, second)] == ["0.png", "0-2.png"]
    assert [writer.write("1", PIXEL).name for writer in (second, first)] == ["1-2.png", "1.png"]


def test_a_run_that_continues_an_earlier_one_has_its_names_where_they_are_free(tmp_path: Path) -> None:
    write_all(tmp_path, ["0"])
    writer = ArtifactWriter(tmp_path, ["0", "1"])
    assert writer.prepare(continues=True) is None
    assert [writer.write(name, PIXEL).name for name in ("1", "0")] == ["1.png", "0-2.png"]


def test_without_links_a_file_is_not_replaced_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Path, path: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    first, second = (ArtifactWriter(tmp_path, ["0"]) for _ in range(2))
    assert [writer.write("0", PIXEL).name for writer in (first, second)] == ["0.png", "0-2.png"]
    assert len(list(tmp_path.iterdir())) == 2
