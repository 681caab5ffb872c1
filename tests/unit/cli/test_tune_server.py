"""`omni tune --url` against a server with known answers: real HTTP, no model."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from support.planned_server import Plan, PlannedServer

from omni_cli.cli.app import run
from omni_cli.records.tune_record import load_tune_record

pytestmark = pytest.mark.slow


def test_the_load_with_the_most_tokens_per_second(
    capsys: pytest.CaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    words = ["tune", "--search", "concurrency=1,8", "--objective", "tokens_per_second", "--margin", "30%"]
    words += ["--num-iters", "2", "--num-iters-warmup", "1"]
    with PlannedServer(lambda _: Plan(first_s=0.02, gap_s=0.0, tokens=2)) as server:
        assert run([*words, "--url", server.url]) == 0
        record = load_tune_record(tmp_path / "tuned" / "tune.json")
        # Each of eight clients waits for its own answers, which take as long as those of a single one.
        assert record.winner == "concurrency=8"
        assert record.limits["url"] == server.url
        # Four requests per client and at least eight, in two windows after one to warm up; several clients send others
        # before and after these.
        assert len(server.bodies) > len(record.rounds) * 3 * (8 + 4 * 8)
    out, _ = capsys.readouterr()
    assert "memory" not in out, "that of a server cannot be read"
    assert "outputs" not in out, "each load has requests of its own"
    assert "Best: concurrency=8" in out and "chat of a server, objective output tokens per second" in out
    assert not (tmp_path / "tuned" / "profile.yaml").exists(), "a load is not a profile"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_keeps_the_rounds_that_are_done(
    number: signal.Signals, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sent: list[int] = []

    def plan(request: int) -> Plan:
        if not sent and Path("tuned/tune.json").exists():
            sent.append(request)
            os.kill(os.getpid(), number)
        return Plan(first_s=3.0 if sent else 0.0, gap_s=0.0, tokens=2)

    words = ["tune", "--search", "concurrency=1,2", "--num-iters", "1", "--num-iters-warmup", "1", "--margin", "0.1%"]
    with PlannedServer(plan) as server:
        assert run([*words, "--url", server.url]) == 130
    err = capsys.readouterr().err
    assert sent and "error: interrupted" in err and "run the same command to continue" in err
    record = load_tune_record(Path("tuned/tune.json"))
    assert [len(item.batches) for item in record.rounds] == [1]
