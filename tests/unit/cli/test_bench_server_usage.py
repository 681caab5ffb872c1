"""Mistakes on the command line of `omni bench --url` are answered before anything is sent."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_cli.cli.app import run
from omni_cli.cli.loadtest.options import ServerOptions, without_key

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
        (["--url", "127.0.0.1:8000"], ["no address of a server", "--url http://127.0.0.1:8000"]),
        (["--url", URL, "--stage", "ar"], ["`--stage` has no meaning with `--url`", "start the server with"]),
        (["--url", URL, "--profile", "tiny-omni"], ["`--profile` has no meaning"]),
        (["--url", URL, "--set", "a=b"], ["`--set` has no meaning"]),
        (["--url", URL, "--against", "HEAD"], ["`--against` has no meaning"]),
        (["--url", URL, "--batch-size", "1"], ["`--batch-size` has no meaning"]),
        (["--url", URL, "--max-memory-regression", "5%"], ["a server does not say how much memory"]),
        (["--concurrency", "2"], ["`--concurrency` is about a server", "`--url`"]),
        (["--slo", "ttft:1s"], ["`--slo` is about a server"]),
        (["--no-ignore-eos"], ["`--ignore-eos` is about a server"]),
        (["--url", URL, "--vary", "max_num_seqs=1,2"], ["cannot be changed in a running server", "concurrency=A,B"]),
        (["--url", URL, "--vary", "concurrency=1"], ["a single value"]),
        (["--url", URL, "--vary", "concurrency=1,x"], ["`x` is not from 1 to"]),
        (["--url", URL, "--vary", "concurrency=1,2", "--vary", "request_rate=1,2"], ["once"]),
        (["--url", URL, "--vary", "concurrency=1,2", "--concurrency", "3"], ["leave `--concurrency`"]),
        (["--url", URL, "--vary", "request_rate=0,2"], ["`0` is no number of requests a second"]),
        (["--url", URL, "--url", URL, "--vary", "concurrency=1,2"], ["two things at once"]),
        (["--url", URL, "--concurrency", "1", "--request-rate", "2"], ["exclude each other"]),
        (["--url", URL, "--concurrency", "9", "--num-requests", "8"], ["does not keep 9 clients busy"]),
        (["--url", URL, "--request-rate", "nan"], ["`nan` is no number of requests a second"]),
        (["--url", URL, "--request-rate", "-1"], ["`-1` is no number of requests a second"]),
        (["--url", URL, "--concurrency", "0"], ["--concurrency"]),
        (["--url", URL, "--modalities", "audio"], ["`--modalities`", "`text,audio`"]),
        (["--url", URL, "--endpoint", "speech", "--modalities", "text,audio"], ["is about chats"]),
        (["--url", URL, "--endpoint", "speech", "--slo", "ttft:1s"], ["these requests have no ttft"]),
        (["--url", URL, "--endpoint", "embeddings"], ["--endpoint"]),
        (["--url", URL, "--extra-body", "[1]"], ["`--extra-body` is no JSON object"]),
        (["--url", URL, "--tokenizer", "nowhere"], ["no `tokenizer.json`"]),
        (["--url", URL, "--max-regression", "5%"], ["needs something to compare with", "a second `--url`"]),
        (["--url", URL, "--request-timeout", "0"], ["--request-timeout"]),
        (["--url", URL, "--time-budget", "0"], ["--time-budget"]),
        (["--url", URL, "--output-json", "no/folder/r.json"], ["cannot write"]),
        (["--url", URL] * 9, ["at most 8"]),
    ],
)
def test_mistakes(arguments: list[str], parts: list[str], capsys: pytest.CaptureFixture) -> None:
    assert run(["bench", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "Traceback" not in err
    assert err.startswith("error: ") and err.count("error: ") == 1
    for part in parts:
        assert part in err


def test_nobody_answers(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert run(["bench", "--url", URL]) == 6
    assert "cannot reach `http://127.0.0.1:1`: connection refused" in capsys.readouterr().err


keys = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=6, max_size=20)
words = st.sampled_from(["bench", "--url", "http://a", "-q", "--json", "--seed", "1"])


@pytest.mark.slow
@given(st.lists(words), keys, st.lists(words), st.booleans())
def test_the_key_is_in_no_recorded_command(before: list[str], key: str, after: list[str], joined: bool) -> None:
    option = [f"--api-key={key}"] if joined else ["--api-key", key]
    shown = without_key([*before, *option, *after])
    assert key not in " ".join(shown)
    assert shown[: len(before)] == before and shown[len(shown) - len(after) :] == after
    assert without_key([*before, *after]) == [*before, *after]


def test_the_key_is_in_no_repr() -> None:
    fields = dict.fromkeys(ServerOptions.__dataclass_fields__)
    assert "hunter2" not in repr(ServerOptions(**{**fields, "urls": (URL,), "api_key": "hunter2"}))


def test_help_has_a_part_of_its_own(capsys: pytest.CaptureFixture) -> None:
    assert run(["bench", "--help"]) == 0
    options, _, server = capsys.readouterr().out.partition("Options for a server:")
    assert "--concurrency" in server and "--concurrency" not in options
    assert "--stage" in options and "--help" in options and "--stage" not in server
