"""The Dockerfile installs the locked versions, from files that .dockerignore lets through."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from omni_cli.cli.app import run

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
IGNORE = (ROOT / ".dockerignore").read_text().splitlines()
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICE = COMPOSE["services"]["omni"]


@pytest.mark.parametrize("name", ["torch", "torchvision"])
def test_versions_are_those_of_the_project(name: str) -> None:
    pinned = next(line for line in PROJECT["project"]["optional-dependencies"]["run"] if line.startswith(f"{name}=="))
    assert re.findall(rf"\b{name}==[\d.]+\d", DOCKERFILE) == [pinned]


def test_everything_that_the_wheel_is_built_from_is_sent() -> None:
    project, wheel = PROJECT["project"], PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {"pyproject.toml", "hatch_build.py", "LICENSE", project["readme"], *wheel["packages"]}
    sent = {line[1:] for line in IGNORE if line.startswith("!")}
    assert sent == needed | set(wheel["force-include"]) | {"requirements"}
    assert "*" in IGNORE


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_each_target_has_the_locked_versions(target: str) -> None:
    assert (ROOT / "requirements" / f"{target}.txt").is_file()
    assert f'pip install --constraint /dist/{target}.txt "$(ls /dist/*.whl)[{target}]"' in DOCKERFILE


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_it_runs_as_a_user_without_privileges(target: str) -> None:
    steps = DOCKERFILE.partition(f" AS {target}\n")[2].partition("\nFROM ")[0]
    assert steps.strip().splitlines()[-1] == "USER omni"


def test_options_in_compose_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--help"]) == 0
    known = capsys.readouterr().out
    options = [word for word in SERVICE["command"] if word.startswith("--")]
    assert options and all(f"{option} " in known for option in options)


def test_files_in_compose_exist() -> None:
    mounted = [volume for service in COMPOSE["services"].values() for volume in service.get("volumes", ())]
    paths = [volume.partition(":")[0] for volume in mounted if volume.startswith("./")]
    assert paths and all((ROOT / path).exists() for path in paths)
