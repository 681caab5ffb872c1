"""`--vary KEY=A,B`: its meaning and its errors."""

from __future__ import annotations

import pytest

from omni_cli.config.loader import load_profile
from omni_cli.core.errors import UsageError
from omni_cli.measure.bench.variant_configs import VariantConfig, check_distinct, parse_vary, split_values

CONFIG = load_profile("tiny-omni")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,8", ["1", "8"]),
        (" eager , compile", ["eager", "compile"]),
        ("[1,2],[3]", ["[1,2]", "[3]"]),
        ("'0,1',0", ["'0,1'", "0"]),
        ("1,", ["1", ""]),
        ("", [""]),
    ],
)
def test_values_are_split_at_commas_outside_of_brackets_and_quotes(text: str, values: list[str]) -> None:
    assert split_values(text) == values


def test_a_key_of_a_stage() -> None:
    a, b = parse_vary(["thinker.max_num_seqs=1,8"], CONFIG, "all")
    assert (a.name, a.overrides, a.settings) == (
        "thinker.max_num_seqs=1",
        ("thinker.max_num_seqs=1",),
        {"thinker.max_num_seqs": 1},
    )
    assert b.settings == {"thinker.max_num_seqs": 8}


@pytest.mark.parametrize(
    ("stage", "stages"),
    [("ar", ["thinker", "talker"]), ("talker", ["talker"]), ("all", ["thinker", "talker", "token2wav"])],
)
def test_a_key_without_a_stage_means_the_measured_stages_that_have_it(stage: str, stages: list[str]) -> None:
    variants = parse_vary(["max_num_seqs=1,8"], CONFIG, stage)
    assert variants[1].overrides == tuple(f"{name}.max_num_seqs=8" for name in stages)
    assert variants[1].name == "max_num_seqs=8"


def test_only_stages_of_the_right_kind_have_a_key() -> None:
    variants = parse_vary(["num_inference_steps=10,11"], CONFIG, "all")
    assert variants[0].overrides == ("token2wav.num_inference_steps=10",)
    nested = parse_vary(["sampling.top_k=1,2"], CONFIG, "all")
    assert nested[0].overrides == ("thinker.sampling.top_k=1", "talker.sampling.top_k=1")


def test_a_top_level_key() -> None:
    assert parse_vary(["dtype=float32,bfloat16"], CONFIG, "all")[1].overrides == ("dtype=bfloat16",)


def test_an_environment_variable_is_a_text_and_may_be_empty() -> None:
    a, b = parse_vary(["env.OMP_NUM_THREADS=,2"], CONFIG, "all")
    assert a.environment == {"OMP_NUM_THREADS": ""} and a.overrides == ()
    assert b.environment == {"OMP_NUM_THREADS": "2"} and b.settings == {"env.OMP_NUM_THREADS": "2"}


def test_several_keys_make_all_combinations() -> None:
    names = [v.name for v in parse_vary(["thinker.max_num_seqs=1,8", "env.A=x,y"], CONFIG, "all")]
    assert names == [
        "thinker.max_num_seqs=1, env.A=x",
        "thinker.max_num_seqs=1, env.A=y",
        "thinker.max_num_seqs=8, env.A=x",
        "thinker.max_num_seqs=8, env.A=y",
    ]


def test_the_same_value_twice_is_a_against_a() -> None:
    a, b = parse_vary(["env.A=1,1"], CONFIG, "all")
    assert (a.name, b.name) == ("env.A=1", "env.A=1 (2)")
    check_distinct([a, b], [CONFIG, CONFIG])


@pytest.mark.parametrize(
    ("texts", "part"),
    [
        (["thinker.max_num_seqs"], "is not KEY=A,B"),
        (["=1,2"], "is not KEY=A,B"),
        (["thinker.max_num_seqs=1"], "single value"),
        (["env.=1,2"], "not the name of an environment variable"),
        (["env.A B=1,2"], "not the name of an environment variable"),
        (["env.A=1,2", "env.A=3,4"], "given twice"),
        (["env.A=1,2,3", "env.B=1,2,3"], "9 variants"),
    ],
)
def test_mistakes(texts: list[str], part: str) -> None:
    with pytest.raises(UsageError, match=part):
        parse_vary(texts, CONFIG, "all")


def test_values_that_mean_the_same_configuration_are_a_mistake() -> None:
    variants = [VariantConfig("a", settings={"k": 1}), VariantConfig("b", settings={"k": 2})]
    with pytest.raises(UsageError, match="same configuration"):
        check_distinct(variants, [CONFIG, CONFIG])
