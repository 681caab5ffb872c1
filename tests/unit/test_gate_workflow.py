"""docs/github-actions-gate.yml works when copied: options exist, steps do what they say; CI has the same gate."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from omni_cli.cli.app import run
from omni_cli.core.errors import ExitCode

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
WORKFLOW = yaml.safe_load((ROOT / "docs" / "github-actions-gate.yml").read_text())
OWN = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
STEPS = WORKFLOW["jobs"]["gate"]["steps"]
OWN_STEPS = [step for job in OWN["jobs"].values() for step in job["steps"]]
BY_NAME = {step.get("name"): step for step in STEPS}
OPTION = re.compile(r"(?<![\w-])--?[a-z][a-z-]*")


def shell(run: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a step's script as GitHub's runners do: `bash -e FILE`."""
    script = folder / "step.sh"
    script.write_text(run)
    return subprocess.run(
        ["bash", "-e", script],
        cwd=folder,
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        timeout=30,
    )


def test_the_action_gets_inputs_that_it_has_and_options_of_omni_bench(capsys) -> None:
    given = BY_NAME["Measure"]["with"]
    assert given.keys() <= ACTION["inputs"].keys()
    assert run(["bench", "--help"]) == 0
    assert set(OPTION.findall(given["args"])) <= set(OPTION.findall(capsys.readouterr().out))


def test_it_may_only_read_and_every_action_has_a_whole_version() -> None:
    # YAML 1.1 reads the key `on` as true. `pull_request_target` would run a stranger's code with the base's rights.
    assert WORKFLOW[True] == {"pull_request": None}
    assert OWN[True] == {"push": {"branches": ["main"]}, "pull_request": None}
    assert WORKFLOW["permissions"] == OWN["permissions"] == {"contents": "read"}
    actions = [step["uses"] for step in [*STEPS, *OWN_STEPS, *ACTION["runs"]["steps"]] if "uses" in step]
    for _ in range(2):
        actions.remove("./")
    assert all(re.fullmatch(r"[\w./-]+@v\d+\.\d+\.\d+", action) for action in actions)


def test_the_base_branch_is_fetched() -> None:
    (checkout,) = [step for step in STEPS if step.get("uses", "").startswith("actions/checkout@")]
    assert checkout["with"]["fetch-depth"] == 0
    assert BY_NAME["Measure"]["with"]["against"] == "origin/${{ github.base_ref }}"


def test_no_script_contains_text_of_a_pull_request() -> None:
    """An expression within `run` becomes a part of the script, whatever a branch is called."""
    assert not [step["name"] for step in [*STEPS, *OWN_STEPS] if "${{" in step.get("run", "")]


@pytest.mark.parametrize("code", ExitCode)
def test_only_a_pass_and_inconclusive_let_the_job_succeed(tmp_path: Path, code: ExitCode) -> None:
    done = shell(BY_NAME["Verdict"]["run"], tmp_path, EXIT_CODE=str(int(code)))
    if code is ExitCode.OK:
        assert (done.returncode, done.stdout) == (0, "The gate passed.\n")
    elif code is ExitCode.INCONCLUSIVE:
        assert done.returncode == 0
        assert done.stdout.startswith("::warning ")
    else:
        assert done.returncode == code
        assert done.stdout.startswith("::error ")


def test_a_step_without_output_fails_the_job(tmp_path: Path) -> None:
    assert shell(BY_NAME["Verdict"]["run"], tmp_path, EXIT_CODE="").returncode == 1


def test_the_record_is_kept_with_any_verdict() -> None:
    (upload,) = [step for step in STEPS if step.get("uses", "").startswith("actions/upload-artifact@")]
    assert upload["if"] == "always()"
    assert STEPS.index(upload) < STEPS.index(BY_NAME["Verdict"])
    assert BY_NAME["Measure"]["continue-on-error"] is True
    kept = re.findall(r"steps\.gate\.outputs\.([\w-]+)", upload["with"]["path"])
    assert kept == ["record", "junit"] and ACTION["outputs"].keys() >= {*kept, "exit-code"}
    assert BY_NAME["Verdict"]["env"]["EXIT_CODE"] == "${{ steps.gate.outputs.exit-code }}"


def test_the_project_runs_everything_and_the_same_gate() -> None:
    assert ".ci/run" in [step.get("run") for step in OWN["jobs"]["test"]["steps"]]
    own = {step["name"]: step for step in OWN["jobs"]["gate"]["steps"] if "name" in step}
    base = {"against": "${{ steps.base.outputs.commit }}"}
    assert own["Measure"] == {**BY_NAME["Measure"], "with": {**BY_NAME["Measure"]["with"], **base}}
    for name in BY_NAME.keys() - {None, "Measure"}:
        assert own[name] == BY_NAME[name]


def test_the_project_measures_against_the_merge_base(tmp_path: Path) -> None:
    """Not against what the base branch got meanwhile."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@localhost", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q", "-b", "main")
    git("commit", "-q", "--allow-empty", "-m", "first")
    first = git("rev-parse", "HEAD")
    git("commit", "-q", "--allow-empty", "-m", "meanwhile")
    base = git("rev-parse", "HEAD")
    git("checkout", "-q", "-b", "change", first)
    git("commit", "-q", "--allow-empty", "-m", "change")
    (step,) = [step for step in OWN["jobs"]["gate"]["steps"] if step.get("id") == "base"]
    assert shell(step["run"], tmp_path, BASE=base, GITHUB_OUTPUT=str(tmp_path / "output")).returncode == 0
    assert (tmp_path / "output").read_text() == f"commit={first}\n"
