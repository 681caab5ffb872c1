"""Files without a date keep their order, and a run of a fixed duration stays in one series however much it did."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from omni_cli.cli.app import run
from omni_cli.records.importers.files import load_newest

DAY_S = 86_400


def hyperfine_night(path: Path, level_s: float, seed: int, *, mtime: float = 1_780_000_000.0) -> Path:
    times = level_s * (1 + 0.004 * np.random.default_rng(seed).standard_normal(12))
    codes = [0] * len(times)
    document = {"results": [{"command": "work", "times": times.tolist(), "exit_codes": codes}]}
    path.write_text(json.dumps(document))
    os.utime(path, (mtime, mtime))
    return path


def steps(folder: Path, capsys: pytest.CaptureFixture[str]) -> list[int]:
    capsys.readouterr()
    run(["history", "show", "--history", str(folder), "--json"])
    (series,) = json.loads(capsys.readouterr().out)["series"]
    return [change["at"] for change in series["changes"]]


@pytest.mark.parametrize("name", ["run-{}.json", "2026-10-{:02}.json"])
def test_files_of_equal_times_are_in_the_order_of_their_names(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [hyperfine_night(tmp_path / name.format(n), 0.1 if n <= 20 else 0.108, n) for n in range(1, 31)]
    shuffled = [str(files[number]) for number in np.random.default_rng(1).permutation(30)]
    assert run(["history", "add", *shuffled, "--history", str(tmp_path / "h"), "-q"]) == 0
    said = "taken in the order of their names" in capsys.readouterr().err
    assert said == ("run" in name), "a date in a name is no guess"
    assert steps(tmp_path / "h", capsys) == [20]


def test_modification_times_count_if_they_tell_the_files_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [
        hyperfine_night(tmp_path / f"{99 - n}.json", 0.1 if n < 20 else 0.108, n, mtime=1_780_000_000 + n * DAY_S)
        for n in range(30)
    ]
    assert run(["history", "add", *map(str, files), "--history", str(tmp_path / "h"), "-q"]) == 0
    assert "order" not in capsys.readouterr().err
    assert steps(tmp_path / "h", capsys) == [20]


def aiperf_night(path: Path, night: int, count: int, level_ms: float) -> Path:
    rng = np.random.default_rng(night)
    begin_ns = 1_780_000_000_000_000_000 + night * DAY_S * 10**9
    lines = [
        {
            "metadata": {"request_start_ns": begin_ns + number * 10**8, "benchmark_phase": "profiling"},
            "metrics": {
                "request_latency": {"value": level_ms * (1 + 0.01 * rng.standard_normal()), "unit": "ms"},
                "output_sequence_length": {"value": 40, "unit": "tokens"},
            },
        }
        for number in range(count)
    ]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return path


def test_a_run_of_a_fixed_duration_is_one_series(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [
        aiperf_night(tmp_path / f"{night}.jsonl", night, 300 - 7 * (night % 9), 200 if night < 20 else 216)
        for night in range(30)
    ]
    assert run(["history", "add", *map(str, files), "--history", str(tmp_path / "h"), "-q"]) == 0
    assert steps(tmp_path / "h", capsys) == [20]
    assert run(["compare", str(files[0]), str(files[1])]) == 0, "and two of them can be compared"


def test_other_requests_are_another_series(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short, long = (aiperf_night(tmp_path / f"{night}.jsonl", night, 300, 200) for night in range(2))
    long.write_text(long.read_text().replace('"value": 40', '"value": 80'))
    assert run(["compare", str(short), str(long)]) == 4
    assert "work.output_tokens" in capsys.readouterr().out


def test_the_summary_of_aiperf_has_a_date_and_an_unknown_unit_is_called_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = {"aiperf_version": "0.13", "request_latency": {"p50": 200.0, "unit": "ms"}, "request_count": {"avg": 9}}
    path = tmp_path / "profile_export_aiperf.json"
    path.write_text(json.dumps({**summary, "start_time": "2026-11-02T03:04:05.678901"}))
    item = load_newest(path)
    assert item.record.created.startswith("2026-11-02T03:04:05") and not item.undated
    path.write_text(json.dumps({**summary, "request_latency": {"p50": 0.1, "unit": "fortnights"}}))
    assert run(["compare", str(path), str(path)]) == 2
    assert "`request_latency` has the unit `fortnights`" in capsys.readouterr().err
    lines = aiperf_night(tmp_path / "a.jsonl", 1, 30, 200)
    lines.write_text(lines.read_text().replace('"ms"', '"fortnights"'))
    assert run(["compare", str(lines), str(lines)]) == 2
    assert "`request_latency` has the unit `fortnights`" in capsys.readouterr().err
