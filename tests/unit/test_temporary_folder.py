"""The folder of sockets if the folder for temporary files has a long name."""

import tempfile
from pathlib import Path

import pytest

from omni_cli import temporary_folder as module
from omni_cli.errors import OmniError
from omni_cli.temporary_folder import temporary_folder


def test_the_usual_folder_while_names_in_it_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/" + "x" * 76)
    assert temporary_folder(30) == "/" + "x" * 76
    assert temporary_folder(31) == "/tmp"


def test_no_folder_with_a_short_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/" + "x" * 100)
    monkeypatch.setattr(module, "_SHORT_FOLDER", str(tmp_path / "missing"))
    with pytest.raises(OmniError, match="too long for sockets") as raised:
        temporary_folder(31)
    assert raised.value.hint == "set TMPDIR to a folder with a name of at most 76 bytes"
