"""Mistakes on the command line of `omni loadtest` are reported before anything is sent."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_cli.cli.app import run
from omni_cli.cli.loadtest.options import without_key

URL = "http://127.0.0.1:1"


@pytest.fixture(autouse=True)
def nothing_is_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def connect(*_: object, **__: object) -> None:
        raise AssertionError("a request was about to be sent")

    monkeypatch.setattr("aiohttp.ClientSession._request", connect)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([], ["missing argument `URL...`"]),
        (["server"], ["not the address of a server", "for example http://127.0.0.1:8000"]),
        ([URL, "--stage", "ar"], ["unknown option `--stage`"]),
        ([URL, "--max-memory-regression", "5%"], ["unknown option `--max-memory-regression`"]),
        ([URL, "--vary", "max_num_seqs=1,2"], ["cannot be varied on a running server", "concurrency=A,B"]),
        ([URL, "--vary", "concurrency=1"], ["a single value"]),
        ([URL, "--vary", "concurrency=1,x"], ["`x` is not from 1 to"]),
        ([URL, "--vary", "concurrency=1,2", "--vary", "request_rate=1,2"], ["once"]),
        ([URL, "--vary", "concurrency=1,2", "--concurrency", "3"], ["omit `--concurrency`"]),
        ([URL, "--vary", "request_rate=0,2"], ["`0` is not a number of requests per second"]),
        ([URL, URL, "--vary", "concurrency=1,2"], ["cannot be combined"]),
        ([URL, "--concurrency", "1", "--request-rate", "2"], ["exclude each other"]),
        ([URL, "--concurrency", "9", "--num-requests", "8"], ["does not keep 9 clients busy"]),
        ([URL, "--request-rate", "nan"], ["`nan` is not a number of requests per second"]),
        ([URL, "--request-rate", "-1"], ["`-1` is not a number of requests per second"]),
        ([URL, "--concurrency", "0"], ["--concurrency"]),
        ([URL, "--modalities", "audio"], ["`--modalities`", "`text,audio`"]),
        ([URL, "--endpoint", "speech", "--modalities", "text,audio"], ["applies to chats"]),
        ([URL, "--endpoint", "speech", "--slo", "ttft:1s"], ["these requests have no ttft"]),
        ([URL, "--endpoint", "embeddings"], ["--endpoint"]),
        ([URL, "--extra-body", "[1]"], ["`--extra-body` is not a JSON object"]),
        ([URL, "--tokenizer", "nowhere"], ["no `tokenizer.json`"]),
        ([URL, "--max-regression", "5%"], ["a limit needs a baseline", "a second URL"]),
        ([URL, "--request-timeout", "0"], ["--request-timeout"]),
        ([URL, "--time-budget", "0"], ["--time-budget"]),
        ([URL, "--output-json", "no/folder/r.json"], ["cannot write"]),
        ([URL] * 9, ["at most 8"]),
    ],
)
def test_mistakes(arguments: list[str], parts: list[str], capsys: pytest.CaptureFixture) -> None:
    assert run(["loadtest", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "Traceback" not in err
    assert err.startswith("error: ") and err.count("error: ") == 1
    for part in parts:
        assert part in err


def test_no_server_answers(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert run(["loadtest", URL]) == 6
    assert "cannot reach `http://127.0.0.1:1`: connection refused" in capsys.readouterr().err


keys = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=6, max_size=20)
words = st.sampled_from(["loadtest", "http://a", "-q", "--json", "--seed", "1"])


@pytest.mark.slow
@given(st.lists(words), keys, st.lists(words), st.booleans())
def test_the_key_is_in_no_recorded_command(before: list[str], key: str, after: list[str], joined: bool) -> None:
    option = [f"--api-key={key}"] if joined else ["--api-key", key]
    shown = without_key([*before, *option, *after])
    assert key not in " ".join(shown)
    assert shown[: len(before)] == before and shown[len(shown) - len(after) :] == after
    assert without_key([*before, *after]) == [*before, *after]


@pytest.mark.parametrize("option", ["--url", "--concurrency", "--request-rate", "--slo"])
def test_bench_names_the_command(option: str, capsys: pytest.CaptureFixture) -> None:
    assert run(["bench", option, URL]) == 2
    err = capsys.readouterr().err
    assert err == f"error: unknown option `{option}`\n\nhint: `omni loadtest URL` measures a running server\n"
