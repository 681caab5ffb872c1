"""The steps of action.yml, run as GitHub's runners do, with the real `omni bench`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.omni_process import ROOT

ACTION = yaml.safe_load((Path(__file__).parents[3] / "action.yml").read_text())
(MEASURE,) = [step for step in ACTION["runs"]["steps"] if step.get("id") == "bench"]
OMNI = f'exec "{sys.executable}" -m omni_cli "$@"'
BRIEF = "--num-iters 2 --num-iters-warmup 1"

pytestmark = pytest.mark.slow


def measure(folder: Path, program: str = OMNI, **inputs: str) -> tuple[int, dict[str, str], str]:
    """The exit code, the outputs and the job summary."""
    folder.mkdir()
    omni = folder / "omni-venv" / "bin" / "omni"
    omni.parent.mkdir(parents=True)
    omni.write_text(f"#!/bin/sh\n{program}\n")
    omni.chmod(0o755)
    environment = {}
    for name, text in MEASURE["env"].items():
        key = text.removeprefix("${{ inputs.").removesuffix(" }}")
        environment[name] = inputs.get(key.replace("-", "_"), ACTION["inputs"][key]["default"])
    files = {name: folder / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    for file in files.values():
        file.touch()
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", MEASURE["run"]],
        cwd=folder,
        env={**os.environ, **environment, "RUNNER_TEMP": str(folder), **{k: str(v) for k, v in files.items()}},
        timeout=240,
    )
    outputs = dict(line.split("=", 1) for line in files["GITHUB_OUTPUT"].read_text().splitlines())
    return done.returncode, outputs, files["GITHUB_STEP_SUMMARY"].read_text()


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, str], str]:
    folder = tmp_path_factory.mktemp("first") / "run"
    return measure(folder, baseline="none yet.json", args="--num-iters 10 --num-iters-warmup 1")


def test_without_a_baseline_it_writes_one_and_passes(first) -> None:
    code, outputs, summary = first
    assert (code, outputs["verdict"], outputs["exit-code"]) == (0, "no baseline", "0")
    assert Path(outputs["record"]).is_file()
    assert "No baseline yet" in summary and Path(outputs["comment"]).read_text() == summary


@pytest.mark.parametrize(("code", "verdict"), [(0, "pass"), (1, "regression"), (4, "not comparable"), (6, "failed")])
def test_each_exit_code_has_a_verdict(tmp_path: Path, code: int, verdict: str) -> None:
    """With a stand-in for `omni`: beside busy neighbours, a real comparison with a record is inconclusive."""
    baseline = tmp_path / "a record.json"
    baseline.touch()
    got, outputs, _ = measure(tmp_path / "run", program=f"exit {code}", baseline=str(baseline))
    assert (got, outputs["verdict"], outputs["exit-code"]) == (code, verdict, str(code))


def test_inconclusive_fails_with_its_exit_code(tmp_path: Path, first) -> None:
    code, outputs, _ = measure(tmp_path / "run", baseline=first[1]["record"], args=BRIEF)
    assert (code, outputs["verdict"], outputs["exit-code"]) == (3, "inconclusive", "3")


def test_a_commit_that_slows_every_step_is_a_regression(tmp_path: Path) -> None:
    clone, identity = tmp_path / "clone", ("-c", "user.name=Ada", "-c", "user.email=ada@example.com")
    subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), str(clone)], check=True)
    changed, line = clone / "omni_cli/backends/diffusers/pipeline_run.py", "        def note_step() -> None:\n"
    source = changed.read_text()
    assert source.count(line) == 1
    changed.write_text(source.replace(line, f"{line}            __import__('time').sleep(0.2)\n"))
    subprocess.run(["git", "-C", str(clone), *identity, "commit", "--quiet", "--all", "--message", "Slow"], check=True)
    program = f'export PYTHONPATH="{clone}"\nexec "{sys.executable}" -P -m omni_cli "$@"'
    code, outputs, summary = measure(tmp_path / "run", program, against="HEAD~1", args="--num-iters-warmup 1")
    assert (code, outputs["verdict"]) == (1, "regression"), summary
    assert "slower" in summary and "<failure" in Path(outputs["junit"]).read_text()


def test_inputs_are_data(tmp_path: Path) -> None:
    code, outputs, _ = measure(tmp_path / "a run", profile="no $(touch x) `touch x`; touch x", args="$(touch x)")
    assert (code, outputs["verdict"]) == (2, "failed")
    assert not (tmp_path / "a run" / "x").exists()
    assert not [step for step in ACTION["runs"]["steps"] if "${{" in step.get("run", "")]
