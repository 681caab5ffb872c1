"""A setting is declared in one place: everything that reads, shows, documents or runs it follows from there."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field
from support.profile_text import GOOD, mistakes, write

import omni_cli
from omni_cli.config import families, roles
from omni_cli.config.loader import load_profile
from omni_cli.config.roles import family_models, json_schema
from omni_cli.config.schema import PROFILE_KEYS, STAGE_MODELS, DiffusionStageConfig, profile_data
from omni_cli.config.stage_keys import VLLM_ONLY, Sampling

PACKAGE = Path(omni_cli.__file__).parent


class VocoderConfig(DiffusionStageConfig):
    """A stage with one more key."""

    pitch: Annotated[int | None, VLLM_ONLY] = Field(None, ge=1, le=9, description="Semitones to shift by.")


@pytest.fixture
def vocoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Qwen2.5-Omni with one more key in one stage; the field above is the only addition."""
    known = dict(families.families())
    omni = known["qwen2_5_omni"]
    token2wav = omni.role("token2wav")
    assert token2wav is not None
    roles_of_omni = (*omni.roles, replace(token2wav, name="vocoder", settings=f"{__name__}:VocoderConfig"))
    known["qwen2_5_omni"] = replace(omni, roles=roles_of_omni)
    monkeypatch.setattr(roles, "families", lambda: known)
    monkeypatch.setattr(roles, "builtins", lambda: dict.fromkeys(omni.builtins, known["qwen2_5_omni"]))
    settings = f"{__name__}:VocoderConfig"
    monkeypatch.setattr(
        roles, "load", lambda reference: VocoderConfig if reference == settings else families.load(reference)
    )


def test_a_new_field_is_parsed_checked_shown_documented_and_sent(vocoder: None, tmp_path: Path) -> None:
    text = GOOD.replace("backend: vllm\n", "backend: vllm\n    pitch: 3\n")
    config = load_profile(str(write(tmp_path, text)), ["vocoder.pitch=4"])
    assert config.stage("vocoder").pitch == 4
    assert pickle.loads(pickle.dumps(config.stage("vocoder"))) == config.stage("vocoder")
    assert profile_data(config)["stages"]["vocoder"]["pitch"] == 4
    documented = json_schema()["$defs"]["DiffusionStageConfig"]["properties"]["pitch"]
    assert documented == {
        "description": "Semitones to shift by.", "maximum": 9, "minimum": 1, "title": "Pitch", "type": "integer"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("backend: vllm\n    pitch: 10", "12:12 '10': invalid value for `pitch`: must be at most 9"),
        ("backend: vllm\n    pich: 1", "12:5 'pich': unknown key `pich` in stage `vocoder` (did you mean `pitch`?)"),
        ("backend: diffusers\n    pitch: 1", "12:5 'pitch': `pitch` has no effect with `backend: diffusers`"),
    ],
)
def test_a_new_field_has_the_same_diagnostics(vocoder: None, tmp_path: Path, written: str, expected: str) -> None:
    assert mistakes(tmp_path, GOOD.replace("backend: vllm", written)) == [expected]


def declarations(key: str) -> Iterator[str]:
    """Yield the lines of the package, where configuration lives, that declare a field of that name."""
    pattern = re.compile(rf"^    {key}: ")
    settings = [path for path in (PACKAGE / "config").glob("*.py") if path.stem != "families"]
    for file in [*settings, *PACKAGE.glob("models/*/settings.py"), *PACKAGE.glob("models/*/family.py")]:
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if pattern.match(line):
                yield f"{file.name}:{number}"


def test_every_key_is_declared_once() -> None:
    stages = [*STAGE_MODELS.values(), *(model for kind in STAGE_MODELS for model in family_models(kind))]
    keys = {key for model in stages for key in model.model_fields} | Sampling.model_fields.keys() | PROFILE_KEYS.keys()
    # Differ by kind, or stand in mappings of their own.
    keys -= {"kind", "backend", "seed", "stages", "name", "model", "description", "version"}
    assert len(keys) > 40
    found = {key: tuple(declarations(key)) for key in keys}
    assert {key: places for key, places in found.items() if len(places) != 1} == {}
