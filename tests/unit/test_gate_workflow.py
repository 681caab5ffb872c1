"""docs/github-actions-gate.yml works when copied: its options exist, and its steps do what they say."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from omni_cli.cli.app import run
from omni_cli.errors import ExitCode

WORKFLOW = yaml.safe_load((Path(__file__).parents[2] / "docs" / "github-actions-gate.yml").read_text())
STEPS = WORKFLOW["jobs"]["gate"]["steps"]
BY_NAME = {step.get("name"): step for step in STEPS}
OPTION = re.compile(r"(?<![\w-])--?[a-z][a-z-]*")


def shell(step: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a step's script as GitHub's runners do: `bash -e FILE`."""
    script = folder / "step.sh"
    script.write_text(BY_NAME[step]["run"])
    return subprocess.run(
        ["bash", "-e", script],
        cwd=folder,
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        timeout=30,
    )


def test_every_option_exists_in_omni_bench(capsys) -> None:
    assert run(["bench", "--help"]) == 0
    known = set(OPTION.findall(capsys.readouterr().out))
    command = BY_NAME["Measure"]["run"].partition("omni bench ")[2].partition("||")[0]
    used = set(OPTION.findall(command))
    assert {"--against", "--max-regression"} <= used
    assert used <= known


def test_it_may_only_read_and_every_action_has_a_whole_version() -> None:
    # YAML 1.1 reads the key `on` as true. `pull_request_target` would run a stranger's code with the base's rights.
    assert WORKFLOW[True] == {"pull_request": None}
    assert WORKFLOW["permissions"] == {"contents": "read"}
    actions = [step["uses"] for step in STEPS if "uses" in step]
    assert actions and all(re.fullmatch(r"[\w./-]+@v\d+\.\d+\.\d+", action) for action in actions)


def test_the_base_branch_is_fetched() -> None:
    (checkout,) = [step for step in STEPS if step.get("uses", "").startswith("actions/checkout@")]
    assert checkout["with"]["fetch-depth"] == 0
    assert BY_NAME["Measure"]["env"]["BASE"] == "origin/${{ github.base_ref }}"


def test_no_script_contains_text_of_a_pull_request() -> None:
    """An expression within `run` becomes a part of the script, whatever a branch is called."""
    assert not [step["name"] for step in STEPS if "${{" in step.get("run", "")]


@pytest.mark.parametrize("code", [0, 1, 3, 130])
def test_measuring_hands_the_exit_code_on_and_does_not_fail(tmp_path: Path, code: int) -> None:
    omni = tmp_path / ".venv" / "bin" / "omni"
    omni.parent.mkdir(parents=True)
    omni.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > arguments\nexit {code}\n')
    omni.chmod(0o755)
    output = tmp_path / "output"
    done = shell("Measure", tmp_path, BASE="origin/main", GITHUB_OUTPUT=str(output), GITHUB_STEP_SUMMARY="summary.md")
    assert done.returncode == 0, done.stderr
    assert output.read_text() == f"exit_code={code}\n"
    arguments = (tmp_path / "arguments").read_text().splitlines()
    assert arguments[arguments.index("--against") + 1] == "origin/main"
    assert arguments[arguments.index("--markdown") + 1] == "summary.md"


@pytest.mark.parametrize("code", ExitCode)
def test_only_a_pass_and_inconclusive_let_the_job_succeed(tmp_path: Path, code: ExitCode) -> None:
    done = shell("Verdict", tmp_path, EXIT_CODE=str(int(code)))
    if code is ExitCode.OK:
        assert (done.returncode, done.stdout) == (0, "The gate passed.\n")
    elif code is ExitCode.INCONCLUSIVE:
        assert done.returncode == 0
        assert done.stdout.startswith("::warning ")
    else:
        assert done.returncode == code
        assert done.stdout.startswith("::error ")


def test_a_step_without_output_fails_the_job(tmp_path: Path) -> None:
    assert shell("Verdict", tmp_path, EXIT_CODE="").returncode == 1


def test_the_record_is_kept_with_any_verdict() -> None:
    (upload,) = [step for step in STEPS if step.get("uses", "").startswith("actions/upload-artifact@")]
    assert upload["if"] == "always()"
    assert STEPS.index(upload) < STEPS.index(BY_NAME["Verdict"])
    written = re.findall(r"--(?:output-json|junit) (\S+)", BY_NAME["Measure"]["run"])
    assert len(written) == 2 and set(upload["with"]["path"].split()) == set(written)
