"""The settings that `omni tune` tries: ranges, refusals, the profile as it is."""

from __future__ import annotations

import random

import pytest

from omni_cli.config.bundled import find_profile
from omni_cli.core.errors import OmniError, UsageError
from omni_cli.measure.bench.profile_source import ProfileSource
from omni_cli.measure.bench.tuning import (
    AS_IT_IS,
    MAX_TOGETHER,
    Space,
    default_space,
    expand_values,
    get_groups,
    plan_space,
)
from omni_cli.measure.bench.workload import Workload
from omni_cli.stats.race import Race


def source(profile: str = "tiny-image", *overrides: str) -> ProfileSource:
    return ProfileSource(str(find_profile(profile)), overrides, None, None, False)


def space(*searches: str, profile: str = "tiny-image", overrides: tuple[str, ...] = (), batch_size: int = 1) -> Space:
    found = source(profile, *overrides)
    return plan_space(searches, found.load(), Workload(batch_size=batch_size), found, cores=2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1..4", "a=1,2,3,4"),
        ("a=1..16", "a=1,2,4,8,16"),
        ("a=3..20", "a=3,6,12,20"),
        ("a=0.5..0.9", "a=0.5,0.6,0.7,0.8,0.9"),
        ("a=-8..8", "a=-8,-4,0,4,8"),
        ("a=1,2", "a=1,2"),
        ("a.b=x..y", "a.b=x..y"),
        ("env.PATH=/a/../b,/c", "env.PATH=/a/../b,/c"),
    ],
)
def test_ranges(text: str, expected: str) -> None:
    assert expand_values(text) == expected


@pytest.mark.parametrize("text", ["a=4..4", "a=16..1"])
def test_a_range_without_values(text: str) -> None:
    with pytest.raises(UsageError, match="smaller number first"):
        expand_values(text)


def test_all_combinations_with_the_profile_as_it_is_first() -> None:
    names = [item.name for item in space("num_inference_steps=2,8", "env.A=1,2").variants]
    assert names == [
        AS_IT_IS, "num_inference_steps=2, env.A=1", "num_inference_steps=2, env.A=2",
        "num_inference_steps=8, env.A=1", "num_inference_steps=8, env.A=2",
    ]  # fmt: skip


def test_a_setting_that_the_profile_has_is_not_tried_twice() -> None:
    names = [item.name for item in space("num_inference_steps=2,4,8").variants]
    assert names == ["num_inference_steps=4", "num_inference_steps=2", "num_inference_steps=8"]


def test_settings_that_this_machine_refuses_have_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni_cli.engine.devices.has_cuda_device", lambda: False)
    found = space("execution=eager,cudagraph")
    assert [item.name for item in found.variants] == ["execution=eager", "execution=cudagraph"]
    (reason,) = found.refused.values()
    assert "CUDA" in reason


@pytest.mark.parametrize(
    ("searches", "message"),
    [
        (["steps=1,2"], "--search steps=1: unknown key `steps`"),
        (["num_inference_steps=4,0"], "--search num_inference_steps=0"),
        (["num_inference_steps=4"], "has a single value"),
        (["num_inference_steps=1..4", "num_inference_steps=5,6"], "is given twice"),
        (["num_inference_steps=1..8", "guidance_scale=1..8", "height=64,128"], "128 variants, and at most 64"),
        (["env.1A=1,2"], "not the name of an environment variable"),
        (["num_inference_steps"], "is not KEY=A,B"),
    ],
)
def test_mistakes(searches: list[str], message: str) -> None:
    with pytest.raises(OmniError) as raised:
        space(*searches)
    assert message in raised.value.message


def test_the_default_space_suits_stages_and_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    chain, image = source("tiny-omni").load(), source().load()
    monkeypatch.setattr("omni_cli.engine.devices.has_cuda_device", lambda: False)
    assert default_space(image, Workload(), 2) == ["execution=eager,compile", "env.OMP_NUM_THREADS=1,2"]
    assert default_space(chain, Workload(stage="ar", batch_size=8), 1) == ["max_num_seqs=1,2,3,4,5,6,7,8"]
    with pytest.raises(UsageError, match="no default space"):
        default_space(chain, Workload(stage="thinker"), 1)
    monkeypatch.setattr("omni_cli.engine.devices.has_cuda_device", lambda: True)
    assert default_space(chain, Workload(batch_size=16), 8) == [
        "execution=eager,compile,cudagraph",
        "cudagraph_mode=none,piecewise,full_and_piecewise",
        "max_num_seqs=1,2,4,8,16",
    ]


def test_groups_are_of_about_equal_size_and_contain_every_rival_once() -> None:
    names = [str(number) for number in range(24)]
    groups = list(get_groups(Race(names, margin=0.05), random.Random(0)))
    assert sorted(name for group in groups for name in group) == sorted(names[1:])
    # The leader is in each batch as well.
    assert {len(group) for group in groups} <= {5, 6} and all(len(group) < MAX_TOGETHER for group in groups)
