"""`--set`, `--model` and `--seed`: their effects and their errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from omni_cli.config.diagnostics import InvalidProfileError
from omni_cli.config.loader import load_profile


def test_keys_of_stages_of_sampling_and_of_the_profile() -> None:
    config = load_profile(
        "tiny-omni",
        [
            "dtype=bfloat16",
            "thinker.max_num_seqs=4",
            "thinker.sampling.temperature=0.5",
            "thinker.sampling.stop=[a, 'b: c']",
            "thinker.enable_prefix_caching=false",
            "token2wav.execution=compile",
            "token2wav.guidance_scale=1e-1",
        ],
    )
    thinker = config.stage("thinker")
    assert config.dtype == "bfloat16"
    assert thinker.max_num_seqs == 4
    assert thinker.sampling.set_values() == {"temperature": 0.5, "max_tokens": 64, "stop": ["a", "b: c"]}
    assert thinker.enable_prefix_caching is False
    assert config.stage("token2wav").execution == "compile"
    assert config.stage("token2wav").guidance_scale == pytest.approx(0.1)


def test_the_last_one_wins_and_fixes_earlier_ones() -> None:
    config = load_profile("tiny-omni", ["thinker.max_num_seqs=x", "thinker.max_num_seqs=2"])
    assert config.stage("thinker").max_num_seqs == 2


def test_a_seed_is_named_by_the_profile_or_an_option_and_not_by_default() -> None:
    assert load_profile("tiny-omni").named_seed is None
    assert load_profile("tiny-omni", ["seed=5"]).named_seed == load_profile("tiny-omni", seed=5).named_seed == 5
    assert load_profile("tiny-omni", ["seed=0"]).named_seed == 0


def test_null_removes_a_key() -> None:
    config = load_profile("tiny-omni", ["thinker.max_model_len=null", "talker.sampling=null"])
    assert config.stage("thinker").max_model_len is None
    assert config.stage("talker").sampling.set_values() == {}


def test_new_sampling_and_call_mappings() -> None:
    config = load_profile("tiny-image", ["image.call=null", "image.call.max_sequence_length=64"])
    assert config.stage("image").call == {"max_sequence_length": 64}


def test_quotes_make_a_text() -> None:
    config = load_profile("tiny-omni", ["thinker.devices='0'", 'talker.devices="1"'])
    assert config.stage("thinker").devices == "0"
    assert config.stage("talker").devices == "1"


def test_model_and_seed_come_last() -> None:
    config = load_profile("tiny-omni", ["model=a/b", "seed=1"], model="c/d", seed=7)
    assert (config.model, config.seed) == ("c/d", 7)


def test_trust_remote_code_comes_from_the_argument_alone() -> None:
    assert load_profile("tiny-omni", trust_remote_code=True).trust_remote_code is True
    assert load_profile("tiny-omni").trust_remote_code is False


WRONG = {
    "thinkr.max_num_seqs=4": "unknown stage `thinkr`\nhint: did you mean `thinker`?",
    "xyz.max_num_seqs=4": "unknown stage `xyz`\nhint: stages are thinker, talker, token2wav",
    "stages.thinker.max_num_seqs=4": "unknown stage `stages`\nhint: write the stage's name first, without `stages.`",
    "thinker.max_num_seq=4": "unknown key `max_num_seq` in stage `thinker`\nhint: did you mean `max_num_seqs`?",
    "dtyp=float32": "unknown key `dtyp`\nhint: did you mean `dtype`?",
    "dtype=float8": "invalid value for `dtype`: expected one of float32, bfloat16, float16\n"
    "hint: did you mean `float32`?",
    "thinker.max_num_seqs='4'": 'invalid type for `max_num_seqs`: expected an integer, got the string "4"',
    "thinker.max_num_seqs=0": "invalid value for `max_num_seqs`: must be at least 1",
    "thinker.sampling.temprature=1": "unknown key `temprature` in `sampling` of stage `thinker`\n"
    "hint: did you mean `temperature`?",
    "thinker.max_num_seqs.x=1": "`max_num_seqs` has no keys of its own",
    "thinker=3": "sets a whole stage\nhint: set one of its keys: `--set thinker.KEY=VALUE`",
    "thinker.max_num_seqs": "expected [STAGE.]KEY=VALUE\nhint: for example `--set thinker.max_num_seqs=4`",
    "=4": "expected [STAGE.]KEY=VALUE\nhint: for example `--set thinker.max_num_seqs=4`",
    "thinker..x=4": "expected [STAGE.]KEY=VALUE\nhint: for example `--set thinker.max_num_seqs=4`",
    "talker.input=nobody": "`input` of stage `talker` names no stage: `nobody`\nhint: stages are thinker, token2wav",
    "thinker.sampling.stop=[a": "not valid YAML: expected ',' or ']', but got '<stream end>'"
    " while parsing a flow sequence",
    "trust_remote_code=true": "`trust_remote_code` cannot be set in a profile\n"
    "hint: code of a checkpoint runs only with the command-line flag `--trust-remote-code`",
    "model=builtin:x": "unknown builtin model `x`: expected one of small-omni, tiny-audio, tiny-csm, tiny-edit",
}


@pytest.mark.parametrize(("override", "expected"), WRONG.items(), ids=WRONG)
def test_a_wrong_one(override: str, expected: str) -> None:
    with pytest.raises(InvalidProfileError) as caught:
        load_profile("tiny-omni", [override])
    message = caught.value.message
    assert message.startswith(f"--set {override}: {expected}")
    assert len(caught.value.diagnostics) == 1


@pytest.mark.parametrize(
    ("value", "shown", "character"),
    [
        ('["a\x07"]', '["a\\x07"]', "U+0007"),
        ("a\x1b[31m", "a\\x1b[31m", "U+001B"),
        ("a\x1c", "a\\x1c", "U+001C"),
        ("8\x00", "8\\x00", "U+0000"),
    ],
)
def test_an_unprintable_character_in_a_value(value: str, shown: str, character: str) -> None:
    with pytest.raises(InvalidProfileError) as caught:
        load_profile("tiny-omni", [f"thinker.sampling.stop={value}"])
    message = f"stop={shown}: the character {character} is not allowed in YAML\nhint: remove it"
    assert caught.value.message == f"--set thinker.sampling.{message}"


def test_a_wrong_model() -> None:
    with pytest.raises(InvalidProfileError, match=r"^--model builtin:tiny: unknown builtin model `tiny`"):
        load_profile("tiny-omni", model="builtin:tiny")


def test_several_wrong_ones_keep_their_order() -> None:
    with pytest.raises(InvalidProfileError) as caught:
        load_profile("tiny-omni", ["token2wav.execution=x", "dtype=y", "thinkr.z=1"])
    labels = [item.location.label for item in caught.value.diagnostics]
    assert labels == ["--set token2wav.execution=x", "--set dtype=y", "--set thinkr.z=1"]


def test_only_arguments_that_the_profile_has_for_its_own_checkpoint_may_be_dropped() -> None:
    def droppable(*overrides: str, model: str | None = "dir") -> set[str]:
        return set(load_profile("tiny-image", overrides, model=model).stage("image").droppable_arguments)

    keys = {"height", "width", "num_inference_steps"}
    assert droppable() == {"true_cfg_scale", *keys}
    assert droppable("image.call.eta=0.5") == {"true_cfg_scale", *keys}
    assert droppable("image.call.true_cfg_scale=2.0") == keys
    assert droppable("image.call={true_cfg_scale: 2.0}") == keys
    assert droppable("image.width=32", "image.guidance_scale=2") == {"true_cfg_scale", *keys} - {"width"}
    assert droppable("model=dir", model=None) == {"true_cfg_scale", *keys}
    assert droppable(model=None) == set()
    assert droppable(model="builtin:tiny-image") == set()


def test_a_key_that_is_a_number_is_not_its_text(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    text = "version: 1\nname: own\nmodel: builtin:tiny-image\ndtype: float32\nstages:\n"
    path.write_text(text + "  image: {kind: diffusion, call: {attention_kwargs: {1: 0.5, '2': 1, a: 3}}}\n")
    own = {1: 0.5, "2": 1, "a": 3}
    for overrides, expected in (((), own), (("image.call.attention_kwargs={7: 1}",), {7: 1})):
        assert load_profile(str(path), overrides).stage("image").call == {"attention_kwargs": expected}


@pytest.mark.parametrize(
    ("profile", "option", "left"),
    [
        ("qwen3-omni-30b-a3b", "thinker.kv_cache_memory_bytes=1073741824", (1 << 30, None)),
        ("tiny-omni", "thinker.gpu_memory_utilization=0.3", (None, 0.3)),
    ],
)
def test_one_way_to_size_the_memory_replaces_the_other(profile: str, option: str, left: tuple[object, object]) -> None:
    stage = load_profile(profile, [option]).stage("thinker")
    assert (stage.kv_cache_memory_bytes, stage.gpu_memory_utilization) == left


def test_both_ways_to_size_the_memory_as_options_are_a_mistake() -> None:
    options = ["thinker.kv_cache_memory_bytes=1073741824", "thinker.gpu_memory_utilization=0.3"]
    with pytest.raises(InvalidProfileError, match="has no effect with `kv_cache_memory_bytes`"):
        load_profile("qwen3-omni-30b-a3b", options)
