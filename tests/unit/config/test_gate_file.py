"""Gate files: their limits, and every mistake with its position."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from omni_cli.config.gate_limits import GateFileError, GateLimits, load_gate_file, merge_limits, parse_fraction
from omni_cli.core.errors import ExitCode, InputError

GATES = Path(__file__).parents[3] / "benchmarks" / "gates"


def load(tmp_path: Path, text: str) -> GateLimits:
    path = tmp_path / "gate.yaml"
    path.write_text(text)
    return load_gate_file(path)


def mistakes(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(GateFileError) as caught:
        load(tmp_path, text)
    assert caught.value.exit_code is ExitCode.USAGE
    found = []
    for item in caught.value.diagnostics:
        line, column = item.location.line + 1, item.location.column + 1
        found.append(f"{line}:{column}: {item.message}")
    return found


@pytest.mark.parametrize("path", sorted(GATES.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_gates_of_the_repository(path: Path) -> None:
    limits = load_gate_file(path)
    assert limits.metrics and limits.memory == 0.02
    assert set(limits.places) == {*limits.metrics, "max_memory_regression"}
    # The schema is for editors: it must know every key that these files use.
    schema = json.loads((GATES / "gate.schema.json").read_text())
    keys = [line.partition(":")[0] for line in path.read_text().splitlines() if line[:1].isalpha()]
    assert set(keys) <= set(schema["properties"])


def test_a_whole_file(tmp_path: Path) -> None:
    limits = load(
        tmp_path,
        "version: 1\nmax_regression: 5%\nmax_memory_regression: 0.02\noutputs: identical\nquality: [ssim>=0.9]\n"
        "metrics:\n  e2e_s: 3%\n  ttft_s:\n  thinker.tpot_s: 0.5 %\n",
    )
    assert limits.metrics == {"e2e_s": 0.03, "ttft_s": 0.05, "thinker.tpot_s": 0.005}
    assert limits.memory == 0.02
    assert limits.max_abs_diff == 0
    assert [str(limit) for limit in limits.quality] == ["ssim>=0.9"]
    assert limits.places["ttft_s"].endswith("gate.yaml:8:3")
    assert limits.max_regression == 0.05


def test_one_limit_is_for_end_to_end_time(tmp_path: Path) -> None:
    assert load(tmp_path, "version: 1\nmax_regression: 5%\n").metrics == {"e2e_s": 0.05}
    only = load(tmp_path, "version: 1\nmax_memory_regression: 0%\noutputs: {max_abs_diff: 1e-4}\n")
    assert (only.metrics, only.memory, only.max_abs_diff, only.max_regression) == ({}, 0.0, 1e-4, None)


def test_all_mistakes_at_once_in_source_order(tmp_path: Path) -> None:
    text = (
        "version: 2\nmax_regresion: 5%\nmax_memory_regression: [1]\noutputs: same\n"
        "metrics:\n  e2e_s: 5\n  ttft_s: 0%\n  rtf: fast\n  Bad-Name: 5%\n  peak_reserved_bytes: 5%\n  tpot_s:\n"
    )
    assert mistakes(tmp_path, text) == [
        "1:10: expected `version: 1`",
        "2:1: unknown key `max_regresion` in a gate file",
        "3:24: `max_memory_regression` is not a percentage",
        "4:10: invalid value for `outputs`",
        "6:10: `5` would be 500%: write `5%` if percent is meant",
        "7:11: a limit of 0 for a time cannot be judged",
        "8:8: expected a percentage such as 5%, not `fast`",
        "9:3: `Bad-Name` cannot be gated",
        "10:3: `peak_reserved_bytes` cannot be gated",
        "11:3: `tpot_s` has no limit",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the gate file is empty"),
        ("- a\n", "the gate file is not a mapping"),
        ("version: 1\n", "the gate file limits nothing"),
        ("version: 1\nmetrics: 5%\n", "`metrics` is not a mapping of metric to limit"),
        ("version: 1\nmetrics: {e2e_s: &x 5%}\n", "an anchor (`&x`) is not allowed in a gate file"),
        ("version: 1\nmetrics: {e2e_s: 5%\n", "not valid YAML"),
        ("version: 1\ndescription: \x1b[31m\n", "2:14: the character U+001B is not allowed in YAML"),
        ("version: 1\ndescription: [1]\nmax_regression: 5%\n", "`description` is not a string"),
        ("version: 1\noutputs: {max_abs_diff: -1}\n", "invalid value for `outputs`"),
        ("version: 1\nmax_regression: true\n", "`max_regression` is not a percentage"),
        ("version: 1\nmax_regression: 2000%\n", "`2000%` is no limit: expected at most 1000%"),
    ],
)
def test_single_mistakes(tmp_path: Path, text: str, message: str) -> None:
    assert any(message in found for found in mistakes(tmp_path, text))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        load_gate_file(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\x00\xff")
    with pytest.raises(InputError, match="not UTF-8"):
        load_gate_file(tmp_path / "binary.yaml")
    (tmp_path / "big.yaml").write_text("#" * 100_000)
    with pytest.raises(InputError, match="larger than 64 KiB"):
        load_gate_file(tmp_path / "big.yaml")


@pytest.mark.parametrize(
    ("text", "value"), [("5%", 0.05), (" 2.5 % ", 0.025), ("0.05", 0.05), (".5", 0.5), ("0", 0.0), ("150%", 1.5)]
)
def test_fractions(text: str, value: float) -> None:
    assert parse_fraction(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "%", "5", "-5%", "nan", "inf", "5%%", "1e400", "5 percent", "\u0665%"])
def test_no_fractions(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected|would be"):
        parse_fraction(text)


def test_options_go_over_the_file() -> None:
    file = GateLimits({"e2e_s": 0.03, "ttft_s": 0.1}, 1e-4, {"e2e_s": "g:1:1", "ttft_s": "g:2:1"})
    merged = merge_limits(file, max_regression=0.2, max_memory_regression=0.01, metrics=("ttft_s",))
    assert (merged.metrics, merged.memory) == ({"e2e_s": 0.03, "ttft_s": 0.2}, 0.01)
    own = GateLimits({"peak_host_rss_bytes": 0.3}, places={"peak_host_rss_bytes": "g:1:1"})
    assert merge_limits(own, max_memory_regression=0.01) == GateLimits({}, memory=0.01)
    assert own.with_memory("peak_host_rss_bytes") == own
    assert merged.places == {"e2e_s": "g:1:1"}
    assert merged.max_abs_diff == 1e-4
    assert merge_limits(file, identical_outputs=True).max_abs_diff == 0
    assert merge_limits(None) is None
    assert merge_limits(None, max_regression=0.05).metrics == {"e2e_s": 0.05}
    assert merge_limits(None, identical_outputs=True).metrics == {}


def test_limits_on_quality_have_places(tmp_path: Path) -> None:
    assert mistakes(tmp_path, "version: 1\nquality: psnr_db>=40\n") == ["2:10: `quality` is not a list of limits"]
    (found,) = mistakes(tmp_path, "version: 1\nquality:\n- ssim>=0.9\n- psnr>=40\n")
    assert found == "4:3: no measure `psnr`; did you mean `psnr_db`?"
