"""The family of a checkpoint or a profile, and the errors of packages whose family is unusable."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from pathlib import Path
from typing import Any

import pytest
from support.machine_facts import facts

from omni_cli.checkpoints.resolve import find_folder
from omni_cli.config import families as registry
from omni_cli.config.bundled import bundled_profiles
from omni_cli.config.families import (
    RANDOM_WEIGHTS,
    Family,
    StageRole,
    broken_plugins,
    families,
    get_family,
    get_family_of_stages,
    has_random_weights,
    load,
)
from omni_cli.config.loader import load_profile
from omni_cli.config.schema import ARStageConfig, DiffusionStageConfig
from omni_cli.core.errors import OmniError
from omni_cli.measure.doctor.checkup import find_problems
from omni_cli.stage.failures import as_failure

TOY = Family("toy", "Toy", (StageRole("writer", "ar", "vllm", "x:y"),), ("ToyModel",), builtins={"tiny-toy": "x:y"})


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """`install(object, ...)`: besides ours, packages whose entry points are these."""
    real = entry_points

    def install(*found: Any) -> None:
        points = []
        for number, family in enumerate(found):
            monkeypatch.setattr(f"{__name__}.FAMILY_{number}", family, raising=False)
            points.append(EntryPoint(f"toy-{number}", f"{__name__}:FAMILY_{number}", registry.GROUP))
        monkeypatch.setattr(registry, "entry_points", lambda **only: EntryPoints([*real(**only), *points]))

    registry._discover.cache_clear()
    yield install
    registry._discover.cache_clear()


def test_every_bundled_profile_has_a_family_and_every_family_of_ours_one_profile() -> None:
    used = set()
    for name in bundled_profiles():
        config = load_profile(name)
        family = get_family_of_stages(config.model, config.stages)
        assert family is not None, name
        used.add(family.name)
    assert used >= {"qwen2_5_omni", "diffusers_pipeline"}
    assert all(family.profile is not None and callable(load(family.profile)) for family in families().values())


@pytest.mark.parametrize(
    ("architecture", "entry_file", "expected"),
    [
        ("Qwen2_5OmniModel", "config.json", "qwen2_5_omni"),
        ("Qwen2_5OmniForConditionalGeneration", "config.json", "qwen2_5_omni"),
        ("LlamaForCausalLM", "config.json", "language_model"),
        ("QwenImagePipeline", "model_index.json", "diffusers_pipeline"),
        ("Qwen2_5OmniModel", "model_index.json", "diffusers_pipeline"),
    ],
)
def test_the_family_of_an_architecture(architecture: str, entry_file: Any, expected: str) -> None:
    assert get_family(architecture, entry_file).name == expected


def test_a_named_architecture_comes_before_any(install: Callable[..., None]) -> None:
    install(TOY)
    assert get_family("ToyModel") is TOY
    assert get_family("LlamaForCausalLM").name == "language_model"


@pytest.mark.parametrize(
    ("model", "stages", "expected"),
    [
        ("a/b", [ARStageConfig.create("thinker")], "qwen2_5_omni"),
        ("a/b", [ARStageConfig.create("anything")], "language_model"),
        ("a/b", [DiffusionStageConfig.create("anything")], "diffusers_pipeline"),
        ("a/b", [ARStageConfig.create("writer")], "toy"),
        ("builtin:tiny-toy", [ARStageConfig.create("anything")], "toy"),
        ("a/b", [ARStageConfig.create("thinker"), ARStageConfig.create("talker", input="thinker")], "qwen2_5_omni"),
        ("a/b", [ARStageConfig.create("writer"), ARStageConfig.create("talker", input="writer")], None),
        ("a/b", [DiffusionStageConfig.create("thinker", backend="vllm")], None),
    ],
)
def test_the_family_of_a_profile(
    install: Callable[..., None], model: str, stages: list[Any], expected: str | None
) -> None:
    install(TOY)
    family = get_family_of_stages(model, stages)
    assert (family and family.name) == expected


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([object()], "the model family `toy-0` of an unknown package is of type object, not a Family"),
        ([TOY, TOY], "two packages provide a model family for ToyModel"),
        (
            [Family("other", "Other", TOY.roles)],
            "two packages provide a model family for any architecture in config.json",
        ),
        ([TOY, Family("b", "B", TOY.roles, ("B",), builtins=TOY.builtins)], "a model family for builtin:tiny-toy"),
    ],
)
def test_a_family_that_cannot_be_used(install: Callable[..., None], found: list[Any], message: str) -> None:
    install(*found)
    (broken,) = broken_plugins()
    assert message in broken.message and f"({__file__}" in broken.message
    assert "pip uninstall" in broken.hint
    assert get_family("Qwen2_5OmniModel").name == "qwen2_5_omni", "others are not affected"


def test_no_package_takes_an_architecture_of_ours(install: Callable[..., None]) -> None:
    install(Family("a", "A", TOY.roles, ("Qwen2_5OmniModel",)))
    assert get_family("Qwen2_5OmniModel").name == "qwen2_5_omni"
    assert [broken.package for broken in broken_plugins()] == ["an unknown package"]


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """`plugin(SOURCE)`: a package whose module `family` is this is installed; its path."""
    real, file = entry_points, tmp_path / "omni_sample" / "family.py"

    def write(source: str) -> Path:
        file.parent.mkdir()
        file.write_text(source)
        point = EntryPoint("sample", "omni_sample.family:FAMILY", registry.GROUP)
        monkeypatch.setattr(registry, "entry_points", lambda **only: EntryPoints([*real(**only), point]))
        return file

    monkeypatch.syspath_prepend(tmp_path)
    registry._discover.cache_clear()
    yield write
    registry._discover.cache_clear()
    registry._broken_claims.clear()
    for name in ("omni_sample", "omni_sample.family"):
        sys.modules.pop(name, None)


_HEAD = "from omni_cli.config.families import Family, StageRole\n"
_ROLES = "(StageRole('writer', 'ar', 'vllm', 'omni_sample.family:Stage'),)"


@pytest.mark.parametrize(
    ("source", "line", "word"),
    [
        ("x = 1\nFAMILY = (\n", 2, "SyntaxError"),
        ("\nFAMILY = famly\n", 2, "NameError"),
        (f"{_HEAD}\nFAMILY = Family('a', 'A', {_ROLES}, archs=())\n", 3, "archs"),
        ("\n\nFAMILY = 3\n", 3, "is of type int, not a Family"),
    ],
)
def test_a_mistake_names_file_and_line(plugin: Callable[[str], Path], source: str, line: int, word: str) -> None:
    file = plugin(source)
    assert get_family("Qwen2_5OmniModel").name == "qwen2_5_omni"
    (broken,) = broken_plugins()
    assert f"{file}:{line}" in broken.message and word in broken.message
    assert broken.message.count(file.name) == 1
    assert [problem.message for problem in find_problems(facts())] == [broken.message]
    with pytest.raises(OmniError) as caught:
        find_folder("builtin:of-the-plug-in")
    assert f"{file}:{line}" in (caught.value.hint or "")


def test_a_module_that_is_not_there(monkeypatch: pytest.MonkeyPatch, install: Callable[..., None]) -> None:
    broken = EntryPoints([EntryPoint("broken", "no_such_package.family:FAMILY", registry.GROUP)])
    monkeypatch.setattr(registry, "entry_points", lambda **only: broken)
    assert "cannot import the model family `broken`" in broken_plugins()[0].message
    assert "`broken = no_such_package.family:FAMILY`" in broken_plugins()[0].message


def test_a_failing_claim_stops_no_other_model(plugin: Callable[[str], Path]) -> None:
    source = f"FAMILY = Family('a', 'A', {_ROLES}, claims='omni_sample.family:claims')\ndef claims(name):\n    1 / 0\n"
    file = plugin(_HEAD + source)
    assert get_family("LlamaForCausalLM").name == "language_model"
    assert f"{file}:4" in broken_plugins()[0].message


def test_a_reference_to_nothing_is_listed_and_named(plugin: Callable[[str], Path]) -> None:
    file = plugin(f"{_HEAD}FAMILY = Family(\n    'a', 'A', {_ROLES}, ('A',),\n    profile='omni_sample.code:derive')\n")
    assert broken_plugins() == ()
    (problem,) = find_problems(facts())
    assert "`omni_sample.code:derive`" in problem.message and f"{file}:4" in problem.message
    with pytest.raises(OmniError, match=r"omni_sample\.code"):
        load("omni_sample.code:derive")


def test_an_error_of_its_code_in_a_stage_names_the_line(plugin: Callable[[str], Path]) -> None:
    file = plugin(
        f"{_HEAD}FAMILY = Family('a', 'A', {_ROLES}, ('A',))\nclass Stage:\n    def __init__(self):\n        1 / 0\n"
    )
    with pytest.raises(ZeroDivisionError) as caught:
        load("omni_sample.family:Stage")()
    failure = as_failure(caught.value, ARStageConfig.create("writer"), loads="a/b")
    assert f"{file}:5" in failure.message and "plug-in" in (failure.hint or "")
    with pytest.raises(ZeroDivisionError) as ours:
        ours_in_a_library()
    assert registry.plugin_place(ours.value) is None


def ours_in_a_library() -> None:
    json.loads("1", parse_int=lambda text: 1 / 0)


def test_each_family_of_ours_has_a_module_of_its_own() -> None:
    """An earlier commit, whose code `omni bench --against` runs, leaves out families whose module it lacks."""
    ours = [point for point in entry_points(group=registry.GROUP) if point.module.startswith("omni_cli.")]
    assert {point.attr for point in ours} == {"FAMILY"}
    assert len({point.module for point in ours}) == len(ours)


def test_a_family_that_only_a_newer_commit_has(monkeypatch: pytest.MonkeyPatch, install: Callable[..., None]) -> None:
    """`omni bench --against` runs older code in an environment whose entry points are of today."""
    real = entry_points
    newer = EntryPoint("newer", "omni_cli.models.newer.family:FAMILY", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda **only: EntryPoints([*real(**only), newer]))
    assert "qwen2_5_omni" in families() and "newer" not in families()


def test_a_built_checkpoint_is_known_by_its_mark(tmp_path: Path) -> None:
    assert has_random_weights("builtin:tiny-omni") and not has_random_weights("owner/name")
    assert not has_random_weights(str(tmp_path))
    (tmp_path / RANDOM_WEIGHTS).touch()
    assert has_random_weights(str(tmp_path))
