"""The folder of saved voices: what a restart finds, names that are refused, and changes at the same time."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
from pathlib import Path

import pytest

from omni_cli.core.errors import OutputError
from omni_cli.serve.errors import APIError
from omni_cli.serve.voice_store import SavedVoice, VoiceStore

ANNE = SavedVoice("anne", "she agrees", 1, 2.5, "hello", ".mp3")


def opened(folder: Path, max_voices: int = 3) -> VoiceStore:
    store = VoiceStore(folder, max_voices)
    assert store.open() == ()
    return store


def test_a_restart_finds_a_voice_and_its_recording(tmp_path: Path) -> None:
    opened(tmp_path / "new" / "folder").add(ANNE, b"sound")
    store = opened(tmp_path / "new" / "folder")
    assert store.voices() == [ANNE] and store.get("anne") == ANNE
    assert store.path(ANNE).read_bytes() == b"sound" and store.path(ANNE).name == "anne.voice.mp3"
    assert store.remove("anne") and not store.remove("anne")
    assert opened(store.folder).voices() == [] and not store.path(ANNE).exists()


def test_a_name_is_given_once_and_the_folder_has_room_for_some(tmp_path: Path) -> None:
    store = opened(tmp_path, max_voices=2)
    store.add(ANNE, b"first")
    for name in ("anne", "Anne"):
        with pytest.raises(APIError, match=f"`{name}` exists"):
            store.add(SavedVoice(name, "yes", 2, 1.0), b"second")
    assert store.path(ANNE).read_bytes() == b"first"
    store.add(SavedVoice("bob", "yes", 2, 1.0), b"")
    with pytest.raises(APIError, match="no more voices"):
        store.add(SavedVoice("carl", "yes", 2, 1.0), b"")


@pytest.mark.parametrize("name", ["", ".", "..", "../anne", "a/b", "/anne", "a\0", ".anne", "-a", "a" * 65, "ä", "a\n"])
def test_a_name_that_leaves_the_folder_or_is_odd(tmp_path: Path, name: str) -> None:
    (tmp_path / "anne.voice.json").write_text('{"name": "anne", "consent": "yes", "created_at": 1, "seconds": 1}')
    store = opened(tmp_path / "inner")
    with pytest.raises(ValueError, match="is not the name"):
        store.add(SavedVoice(name, "yes", 1, 1.0), b"")
    assert store.get(name) is None and not store.remove(name)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["anne.voice.json"]


def test_a_suffix_that_leaves_the_folder(tmp_path: Path) -> None:
    """In a record that somebody has changed, too."""
    with pytest.raises(ValueError, match="is not the name"):
        opened(tmp_path).add(SavedVoice("anne", "yes", 1, 1.0, suffix="/../../x"), b"")
    record = '{"name": "anne", "consent": "yes", "created_at": 1, "seconds": 1, "suffix": "/../../x"}'
    (tmp_path / "anne.voice.json").write_text(record)
    assert VoiceStore(tmp_path, 3).get("anne") is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"name": "other"}', b"\xff"])
def test_a_record_that_cannot_be_read_is_named_and_left_alone(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bob.voice.json").write_bytes(content)
    (tmp_path / ".omni-0123456789abcdef.tmp").touch()
    (tmp_path / "notes.txt").write_text("mine")
    store = VoiceStore(tmp_path, 3)
    assert store.open() == ("bob.voice.json",)
    assert store.voices() == [] and store.get("bob") is None
    assert sorted(path.name for path in tmp_path.iterdir()) == [".omni-voices", "bob.voice.json", "notes.txt"]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot write") as failure:
        VoiceStore(tmp_path / "file" / "folder", 3).open()
    assert failure.value.hint == "choose another folder with `--voices-dir`"


def test_a_full_disk_leaves_no_voice(tmp_path: Path) -> None:
    store = opened(tmp_path)
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        with pytest.raises(OSError, match="too large"):
            store.add(ANNE, bytes(2000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert [path.name for path in tmp_path.iterdir()] == [".omni-voices"]
    store.add(ANNE, bytes(2000))


def _add(folder: Path, number: int) -> None:
    try:
        VoiceStore(folder, 9).add(SavedVoice("anne", str(number), number, 1.0), str(number).encode() * 100_000)
    except APIError:
        os._exit(3)


def test_of_several_servers_that_add_a_name_one_does(tmp_path: Path) -> None:
    adding = [multiprocessing.Process(target=_add, args=(tmp_path, number)) for number in range(6)]
    for process in adding:
        process.start()
    for process in adding:
        process.join()
    assert sorted(process.exitcode for process in adding) == [0, 3, 3, 3, 3, 3]
    (voice,) = opened(tmp_path).voices()
    assert VoiceStore(tmp_path, 9).path(voice).read_bytes() == voice.consent.encode() * 100_000
