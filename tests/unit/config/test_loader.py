"""Where profiles are found, what they resolve to, and that showing one gives back the same profile."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_cli.config.bundled import bundled_profiles, find_profile
from omni_cli.config.loader import check_profile, load_profile
from omni_cli.config.roles import json_schema
from omni_cli.config.schema import ARStageConfig, profile_data
from omni_cli.config.yaml_tree import parse_scalar, to_yaml
from omni_cli.core.errors import ExitCode, ProfileError
from omni_cli.models.qwen2_5_omni.settings import Token2WavConfig

NAMES = sorted(path.stem for path in (Path(__file__).parents[3] / "profiles").glob("*.yaml"))


def test_the_bundled_profiles() -> None:
    assert list(bundled_profiles()) == NAMES
    assert [load_profile(name).name for name in NAMES] == NAMES


def test_tiny_omni_resolves_to_the_chain_of_the_contract() -> None:
    config = load_profile("tiny-omni")
    assert (config.model, config.dtype, config.seed) == ("builtin:tiny-omni", "float32", 0)
    assert [(stage.name, stage.kind, stage.input) for stage in config.stages] == [
        ("thinker", "ar", None),
        ("talker", "ar", "thinker"),
        ("token2wav", "diffusion", "talker"),
    ]
    assert isinstance(config.stage("thinker"), ARStageConfig)
    assert config.stage("thinker").sampling.set_values() == {"temperature": 0.0, "max_tokens": 64}
    token2wav = config.stage("token2wav")
    assert isinstance(token2wav, Token2WavConfig)
    assert (token2wav.backend, token2wav.num_inference_steps, token2wav.sway_coefficient) == (
        "vllm",
        10,
        -1.0,
    )
    # Stages live in processes of their own.
    assert pickle.loads(pickle.dumps(config)) == config


def test_a_name_precedes_a_path_and_a_path_needs_no_suffix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny-omni").write_text("not a profile")
    Path("mine").write_text(bundled_profiles()["tiny-image"].read_text().replace("name: tiny-image", "name: mine"))
    assert load_profile("tiny-omni").name == "tiny-omni"
    assert load_profile("mine").name == "mine"


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("tiny-onmi", "no profile named `tiny-onmi`, and no such file", "did you mean `tiny-omni`?\nbundled"),
        ("dir/tiny-onmi.yaml", "no profile file `dir/tiny-onmi.yaml`", "did you mean `tiny-omni`?\nbundled"),
        ("zzz", "no profile named `zzz`, and no such file", f"bundled profiles are {', '.join(NAMES)}"),
        ("", "no profile named ``, and no such file", "bundled profiles are"),
        ("a\0b", "no profile named `a\\x00b`", None),
        ("x" * 5000, "cannot read profile", None),
        (".", "profile `.` is a folder", "name the YAML file in it"),
    ],
)
def test_no_such_profile(name: str, message: str, hint: str | None) -> None:
    with pytest.raises(ProfileError) as caught:
        find_profile(name)
    assert caught.value.exit_code == ExitCode.USAGE
    assert caught.value.message.startswith(message)
    assert (caught.value.hint or "").startswith(hint or "")


@pytest.mark.parametrize("name", NAMES)
def test_the_output_of_show_is_the_same_profile(name: str, tmp_path: Path) -> None:
    config = load_profile(name)
    path = tmp_path / "shown.yaml"
    path.write_text(to_yaml(profile_data(config)))
    assert check_profile(path) == ()
    shown = load_profile(str(path))
    assert shown == config and shown.named_seed is None, "a server would give each request the default"


TEXTS = st.text(st.characters(codec="utf-8"), max_size=30)
AWKWARD = st.sampled_from(["no", "1", "1.0", "1e3", "0x1", "~", "null", "1:30", "2024-01-01", "a: b"])


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(text=TEXTS | AWKWARD, number=st.floats(0, 1000, allow_nan=False), whole=st.integers(0, 2**40))
def test_any_value_survives_showing(
    tmp_path_factory: pytest.TempPathFactory, text: str, number: float, whole: int
) -> None:
    data = profile_data(load_profile("qwen-image"))
    data["description"] = text
    data["stages"]["image"]["negative_prompt"] = text
    call = {"a": text, "b": number, "c": whole, "d": True, "e": [whole, [text, None]], "f": None}
    call["g"] = {"h": [number], whole: 1, str(whole): 2}
    data["stages"]["image"]["call"] = call
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(to_yaml(data), encoding="utf-8")
    image = load_profile(str(path)).stage("image")
    assert image.negative_prompt == text
    assert dict(image.call) == call
    assert type(image.call["b"]) is float


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1), ("-7", -7), ("+3", 3), ("007", 7), ("0x1F", 31), ("0o17", 15), ("9" * 5000, "9" * 5000),
        ("1e-3", 0.001), ("1.5", 1.5), (".5", 0.5), ("2.", 2.0), ("true", True), ("False", False),
        ("null", None), ("~", None), ("", None), ("no", "no"), ("on", "on"), ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"), ("1_000", "1_000"), ("0x", "0x"), ("e5", "e5"),
    ],
)  # fmt: skip
def test_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    assert parse_scalar(text) == value
    assert type(parse_scalar(text)) is type(value)


@pytest.fixture(scope="module")
def validator():
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(json.dumps(json_schema()))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


class TestJsonSchema:
    """The schema for editors agrees with the checks of `omni`."""

    @pytest.mark.parametrize("name", NAMES)
    def test_the_bundled_profiles_are_valid(self, validator, name: str) -> None:
        yaml = pytest.importorskip("yaml")
        validator.validate(yaml.safe_load(bundled_profiles()[name].read_text()))
        validator.validate(profile_data(load_profile(name)))

    @pytest.mark.parametrize(
        "change",
        [
            {"extra": 1},
            {"version": 2},
            {"model": ""},
            {"dtype": "float8"},
            {"stages": {}},
            {"stages": {"a": {"kind": "ar", "guidance_scale": 3}}},
            {"stages": {"a": {"kind": "arr"}}},
            {"stages": {"A b": {"kind": "ar"}}},
            {"stages": {"a": {"kind": "ar", "max_num_seqs": None}}},
            {"stages": {"a": {"kind": "ar", "sampling": {"temprature": 0}}}},
            {"stages": {"a": {"kind": "diffusion", "call": {"x": [[[1]]]}}}},
        ],
    )
    def test_mistakes_are_not(self, validator, change: dict) -> None:
        data = {**profile_data(load_profile("tiny-image")), **change}
        assert not validator.is_valid(data)

    def test_every_key_is_explained(self) -> None:
        schema = json_schema()
        assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
        for definition in (schema, *schema["$defs"].values()):
            assert definition["additionalProperties"] is False
            for name, key in definition["properties"].items():
                assert key.get("description"), name
        assert schema["$defs"]["ARStageConfig"]["properties"]["cudagraph_mode"]["enum"][0] == "none"
        execution = schema["$defs"]["DiffusionStageConfig"]["properties"]["execution"]
        assert "default" not in execution, "absent, it is chosen while the stage loads"
        assert "null" not in json.dumps(schema)


def test_a_relative_model_counts_from_the_profile_s_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a profile works from every folder; a name that leads nowhere from there is left as it is."""
    (tmp_path / "models" / "m").mkdir(parents=True)
    (tmp_path / "profiles").mkdir()
    path = tmp_path / "profiles" / "own.yaml"
    rest = "dtype: float32\nstages: {text: {kind: ar}}"
    path.write_text(f"version: 1\nname: own\nmodel: ../models/m\n{rest}\n")
    monkeypatch.chdir(tmp_path / "models")
    assert load_profile(str(path)).model == str(tmp_path / "models" / "m")
    assert load_profile(str(path), model="../models/m").model == "../models/m"
    path.write_text(f"version: 1\nname: own\nmodel: owner/name\n{rest}\n")
    assert load_profile(str(path)).model == "owner/name"
