"""The measured stages, and their fixed work."""

from __future__ import annotations

import re

import pytest

from omni_cli.config.loader import load_profile
from omni_cli.core.errors import UsageError
from omni_cli.measure.bench.workload import (
    Workload,
    has_successor,
    lengths_given_by,
    measured_stages,
    stages_before,
    with_fixed_work,
)
from omni_cli.records.record import workload_fingerprint

CONFIG = load_profile("tiny-omni")
IMAGE = load_profile("tiny-image")


@pytest.mark.parametrize(
    ("wanted", "names", "before", "successor"),
    [
        ("all", ["thinker", "talker", "token2wav"], [], False),
        ("ar", ["thinker", "talker"], [], True),
        ("thinker", ["thinker"], [], True),
        ("talker", ["talker"], ["thinker"], True),
        ("diffusion", ["token2wav"], ["thinker", "talker"], False),
        ("token2wav", ["token2wav"], ["thinker", "talker"], False),
    ],
)
def test_stages(wanted: str, names: list[str], before: list[str], successor: bool) -> None:
    measured = measured_stages(CONFIG, wanted)
    assert [stage.name for stage in measured] == names
    assert [stage.name for stage in stages_before(CONFIG, measured)] == before
    assert has_successor(CONFIG, measured) is successor


@pytest.mark.parametrize(
    ("config", "wanted", "message", "hint"),
    [
        (CONFIG, "thinkr", "unknown stage `thinkr`", "did you mean `thinker`"),
        (CONFIG, "xyz", "unknown stage `xyz`", "thinker, talker, token2wav"),
        (IMAGE, "ar", "has no ar stage", "image \\(diffusion\\)"),
    ],
)
def test_unknown_stages(config, wanted: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        measured_stages(config, wanted)
    assert re.search(hint, raised.value.hint or "")


def test_every_ar_stage_generates_exactly_output_len_tokens() -> None:
    fixed = with_fixed_work(CONFIG, 7)
    for name in ("thinker", "talker"):
        sampling = fixed.stage(name).sampling
        assert (sampling.max_tokens, sampling.min_tokens, sampling.ignore_eos) == (7, 7, True)
    assert fixed.stage("talker").sampling.repetition_penalty == 1.05
    assert fixed.stage("token2wav") == CONFIG.stage("token2wav")


def test_a_stage_whose_length_follows_from_its_input_is_unchanged() -> None:
    glm_image = load_profile("tiny-glm-image")
    assert with_fixed_work(glm_image, 7).stage("prior") == glm_image.stage("prior")


def test_a_length_set_for_a_stage_applies_to_it() -> None:
    overrides = ("talker.sampling.max_tokens=50", "thinker.max_num_seqs=2")
    assert lengths_given_by(overrides) == ("talker",)
    fixed = with_fixed_work(load_profile("tiny-omni", overrides), 7, lengths_given_by(overrides))
    assert fixed.stage("talker").sampling.min_tokens == 50
    assert fixed.stage("thinker").sampling.min_tokens == 7


def test_the_description_distinguishes_workloads() -> None:
    described = Workload("ar").describe(CONFIG)
    assert described["stages"] == ["thinker", "talker"]
    assert described["fingerprint"] == workload_fingerprint(described)
    others = [
        Workload("ar", batch_size=2).describe(CONFIG),
        Workload("ar", input_len=33).describe(CONFIG),
        Workload("ar").describe(load_profile("tiny-omni", ["thinker.max_num_seqs=4"])),
    ]
    assert len({described["fingerprint"], *(other["fingerprint"] for other in others)}) == 4
