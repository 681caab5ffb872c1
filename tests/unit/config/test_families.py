"""The family of a checkpoint or a profile, and the errors of packages whose family is unusable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from pathlib import Path
from typing import Any

import pytest

from omni_cli.config import families as registry
from omni_cli.config.bundled import bundled_profiles
from omni_cli.config.families import (
    RANDOM_WEIGHTS,
    Family,
    StageRole,
    families,
    get_family,
    get_family_of_stages,
    has_random_weights,
    load,
)
from omni_cli.config.loader import load_profile
from omni_cli.config.schema import ARStageConfig, DiffusionStageConfig
from omni_cli.core.errors import OmniError

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

    families.cache_clear()
    yield install
    families.cache_clear()


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
        ([object()], "the model family `toy-0` of an unknown package is a object, not a Family"),
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
    with pytest.raises(OmniError) as caught:
        families()
    assert message in caught.value.message
    assert caught.value.hint and "pip uninstall" in caught.value.hint


def test_a_family_that_cannot_be_imported(install: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    broken = EntryPoints([EntryPoint("broken", "no_such_package.family:FAMILY", registry.GROUP)])
    monkeypatch.setattr(registry, "entry_points", lambda **only: broken)
    with pytest.raises(OmniError, match=r"cannot import the model family `broken` .*No module named 'no_such_package'"):
        families()


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
