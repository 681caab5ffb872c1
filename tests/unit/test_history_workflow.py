"""docs/github-actions-history.yml works when copied: its options exist, and its steps do what they say."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from omni_cli.cli.app import run

WORKFLOW = yaml.safe_load((Path(__file__).parents[2] / "docs" / "github-actions-history.yml").read_text())
STEPS = WORKFLOW["jobs"]["history"]["steps"]
BY_NAME = {step.get("name"): step for step in STEPS}
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


@pytest.mark.parametrize(
    ("step", "command"),
    [("Measure", "bench"), ("Keep the record", "history add"), ("Check", "history check"), ("Check", "report")],
)
def test_every_option_exists(step: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command.split(), "--help"]) == 0
    known = set(OPTION.findall(capsys.readouterr().out))
    script = BY_NAME[step]["run"].replace("\\\n", " ")
    used = {option for line in re.findall(rf"omni {command} ([^|\n]*)", script) for option in OPTION.findall(line)}
    assert used <= known
    assert f"omni {command} " in script


def test_it_runs_nightly_and_every_action_has_a_whole_version() -> None:
    # YAML 1.1 reads the key `on` as true.
    assert list(WORKFLOW[True]) == ["schedule"]
    actions = [step["uses"] for step in STEPS if "uses" in step]
    assert actions and all(re.fullmatch(r"[\w./-]+@v\d+\.\d+\.\d+", action) for action in actions)


def test_the_record_is_kept_before_the_check() -> None:
    names = [step.get("name") for step in STEPS]
    assert names.index("Measure") < names.index("Keep the record") < names.index("Check") < names.index("Verdict")


@pytest.mark.parametrize(("code", "status"), [("0", 0), ("3", 0), ("4", 0), ("1", 1), ("2", 2), ("", 1)])
def test_the_verdict_ends_the_job(code: str, status: int, tmp_path: Path) -> None:
    script = tmp_path / "step.sh"
    script.write_text(BY_NAME["Verdict"]["run"])
    environment = {"PATH": "/usr/bin:/bin", "EXIT_CODE": code}
    done = subprocess.run(["bash", "-e", script], env=environment, capture_output=True, text=True, timeout=30)
    assert done.returncode == status
    assert done.stdout.startswith("::") or code == "0"
