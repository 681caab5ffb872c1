"""Mistakes on the command line of `omni tune` are reported before anything starts; files of other searches are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from omni_cli.cli.app import run
from omni_cli.cli.tune.options import TuneOptions


@pytest.mark.parametrize(
    ("arguments", "code", "parts"),
    [
        (["--search", "max_num_seq=1,8"], 2, ["--search max_num_seq=1: unknown key", "did you mean `max_num_seqs`"]),
        (["--search", "max_num_seqs=1,x"], 2, ["--search max_num_seqs=x: invalid type for `max_num_seqs`"]),
        (["--search", "max_num_seqs=1"], 2, ["nothing to compare", "`--search max_num_seqs=1,B`"]),
        (["--search", "max_num_seqs=8..1"], 2, ["write the smaller number first"]),
        (["--stage", "thinkr"], 2, ["unknown stage `thinkr`"]),
        (["--objective", "fastest"], 2, ["--objective"]),
        (["--objective", "goodput"], 2, ["`--objective goodput` needs limits", "--slo ttft:200ms"]),
        (["--objective", "tokens_per_second"], 2, ["is for a single AR stage"]),
        (["--objective", "images_per_second"], 2, ["these stages of `tiny-omni` make no images"]),
        (["--slo", "ttfp:1s", "--profile", "tiny-image"], 2, ["these requests have no ttfp"]),
        (["--slo", "ttft:200"], 2, ["`--slo ttft:200`"]),
        (["--slo", "ttft:200ms", "--profile", "tiny-image"], 2, ["these requests have no ttft"]),
        (["--max-memory", "lots"], 2, ["`lots` is not a size"]),
        (["--max-memory", "0GiB"], 2, ["is not a size"]),
        (["--quality", "psnr>40"], 2, ["--quality"]),
        (["--quality", "wer<=0.1"], 2, ["`wer` needs a model", "omni bench"]),
        (["--margin", "0"], 2, ["no number of starts proves equality"]),
        (["--margin", "5"], 2, ["write `5%`"]),
        (["--time-budget", "-1"], 2, ["--time-budget"]),
        (["--num-iters", "0"], 2, ["--num-iters"]),
        (["--endpoint", "images"], 2, ["`--endpoint` is for a running server"]),
        (["--profile", "nothing"], 2, ["no profile named `nothing`"]),
        (["--search", "env.A=1,2", "--output-dir", "file"], 2, ["cannot write `file`", "--output-dir"]),
    ],
)
def test_mistakes(
    arguments: list[str],
    code: int,
    parts: list[str],
    capsys: pytest.CaptureFixture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    assert run(["tune", *arguments]) == code
    out, err = capsys.readouterr()
    assert out == "" and "Traceback" not in err and err.count("error:") == 1
    for part in parts:
        assert part in err
    assert not (tmp_path / "tuned").exists()


def test_another_file_in_the_folder_is_kept(
    capsys: pytest.CaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tuned").mkdir()
    (tmp_path / "tuned" / "tune.json").write_text('{"schema": "mine/1"}')
    assert run(["tune", "-p", "tiny-image", "--search", "env.A=1,2"]) == 2
    assert "has the schema `mine/1`" in capsys.readouterr().err
    assert (tmp_path / "tuned" / "tune.json").read_text() == '{"schema": "mine/1"}'


@pytest.mark.parametrize(
    ("text", "expected"), [("20GiB", 20 * 2**30), ("1.5 MB", 1_500_000), ("512", 512), ("4KiB", 4096), ("7B", 7)]
)
def test_sizes(text: str, expected: int) -> None:
    assert TuneOptions(max_memory=text).max_memory_bytes() == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--search", "max_num_seqs=1,2"], "cannot be varied on a running server"),
        (["--search", "concurrency=0..4"], "`0` is not from 1 to 4096"),
        (["--search", "request_rate=1,x"], "is not a number of requests per second"),
        (["--objective", "images_per_second"], "answers of the endpoint `chat` have no `images_per_second`"),
        (["--profile", "tiny-omni"], "`--profile` does not apply to a running server"),
        (["--quality", "ssim>=0.9"], "`--quality` does not apply to a running server"),
        (["--stage", "thinker"], "`--stage` does not apply to a running server"),
        (["--slo", "rtf:1"], "these requests have no rtf"),
        (["--endpoint", "images", "--slo", "ttft:1s"], "these requests have no ttft"),
    ],
)
def test_mistakes_about_servers(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["tune", "--url", "http://127.0.0.1:9", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("error:") == 1 and message in err


def test_a_server_that_does_not_answer(
    capsys: pytest.CaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["tune", "--url", "http://127.0.0.1:9"]) == 6
    assert "cannot reach `http://127.0.0.1:9`: connection refused" in capsys.readouterr().err
