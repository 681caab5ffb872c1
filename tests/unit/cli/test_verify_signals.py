"""Early ends of `omni verify`: a signal keeps the rows of the checks that are done."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from omni_cli.cli.verify import run as verify_run
from omni_cli.cli.verify.options import VerifyOptions
from omni_cli.measure.verify.subject import Subject
from omni_cli.records.verify_record import Row, load_verify_record


class Interrupted:
    """Checks of which one is done when the signal comes."""

    probabilities: tuple[Any, ...] = ()
    subject = Subject

    def __init__(self, number: signal.Signals, num_done: int) -> None:
        self._number = number
        self.rows = [Row(check="repeat", stage="image", verdict="equal")] * num_done

    async def run(self) -> None:
        os.kill(os.getpid(), self._number)
        await asyncio.sleep(60)


def verify(folder: Path, number: signal.Signals, num_done: int) -> int:
    options = VerifyOptions(output_json=folder / "verify.json")
    subject: dict[str, Any] = {"profile": "tiny-image", "requests": {"0": "sha256:0"}}
    start: Any = lambda _folder, _line: Interrupted(number, num_done)  # noqa: E731
    return int(verify_run._run_checks(start, subject, options, 0.0))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_keeps_the_rows_that_are_done(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(verify_run, "read_environment", dict)
    assert verify(tmp_path, number, 1) == 130
    printed = capsys.readouterr()
    assert "1 row" in printed.out and "[0 s] tiny-image: 1 request in each check\n" in printed.err
    assert printed.err.endswith("error: interrupted\n")
    record = load_verify_record(tmp_path / "verify.json")
    assert [row.verdict for row in record.rows] == ["equal"] and record.stopped == "interrupted"


def test_a_signal_before_the_first_row_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_run, "read_environment", dict)
    with pytest.raises(Exception, match="interrupted"):
        verify(tmp_path, signal.SIGTERM, 0)
    assert not (tmp_path / "verify.json").exists()
