"""Models that transcribe, found in vLLM's sources, and the requests that ask them to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from omni_cli.config.families import get_family
from omni_cli.config.loader import check_profile, load_profile
from omni_cli.config.schema import EngineConfig
from omni_cli.core.errors import UsageError
from omni_cli.requests.capabilities import Capabilities
from omni_cli.requests.request_spec import check_fields, get_spec

_PROFILE = {"version": 1, "name": "a", "model": "b", "dtype": "float32"}
LISTENER = EngineConfig.model_validate({**_PROFILE, "stages": {"listener": {"kind": "ar"}}})


@pytest.mark.parametrize(
    ("architecture", "family"),
    [
        ("WhisperForConditionalGeneration", "transcription"),
        ("CohereAsrForConditionalGeneration", "transcription"),
        ("FunASRForConditionalGeneration", "transcription"),
        ("FireRedASR2ForConditionalGeneration", "transcription"),
        ("MossTranscribeDiarizeForConditionalGeneration", "transcription"),
        ("VoxtralForConditionalGeneration", "voxtral"),
        ("VoxtralRealtimeForConditionalGeneration", "voxtral"),
        ("GlmAsrForConditionalGeneration", "listener"),
        ("GraniteSpeechPlusForConditionalGeneration", "listener"),  # from a base in another module
        ("Gemma3nForConditionalGeneration", "listener"),
        ("MoonshotKimiaForCausalLM", "listener"),
        ("Qwen3OmniMoeForConditionalGeneration", "qwen3_omni"),
        # A base of theirs transcribes, and they pool.
        ("Qwen3ASRForcedAlignerForTokenClassification", "language_model"),
        ("Qwen3ForCausalLM", "language_model"),
        ("Qwen2AudioForConditionalGeneration", "language_model"),
        ("Qwen2_5_VLForConditionalGeneration", "language_model"),
        ("NoSuchModel", "language_model"),
    ],
)
def test_the_family_of_an_architecture(architecture: str, family: str) -> None:
    assert get_family(architecture).name == family


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({"audio": ["a.wav"]}, True),
        ({"audio": ["a.wav"], "prompt": "Who speaks?"}, False),
        ({"audio": ["a.wav"], "prompt": "names", "language": "de"}, True),
        ({"prompt": "hello"}, False),
    ],
)
def test_what_asks_for_a_transcript(fields: dict[str, Any], asked: bool) -> None:
    for config in (LISTENER, load_profile("tiny-qwen3-omni")):
        capabilities = Capabilities.of(config)
        assert (capabilities.transcribes, capabilities.hears) == (False, True)
        checked = check_fields(fields, capabilities, str)
        capabilities.check_together(checked, str)
        request = get_spec(checked, request_id="0", folder=Path()).request
        assert request.transcription.asked == asked
        assert request.modalities == (frozenset({"text"}) if asked else None), "a transcript is not spoken"
        assert capabilities.lacks_prompt({}) and not capabilities.lacks_prompt(
            {"audio": fields.get("audio", ["a.wav"])}
        )


@pytest.mark.parametrize(
    ("stage", "key", "where", "message"),
    [
        (
            "transcriber",
            "sampling: {stop: [a]}",
            26,
            "`stop` has no effect on a transcript, which is that of the whole",
        ),
        ("transcriber", "sampling: {include_stop_str_in_output: true}", 26, "`include_stop_str_in_output` has no"),
        ("listener", "sampling: {stop: [a]}", None, ""),
        ("transcriber", "aligner: b", None, ""),
        ("listener", "aligner: b", None, ""),
        ("model", "aligner: b", 15, "`aligner` has no effect in a stage that does not transcribe"),
    ],
)
def test_keys_without_effect_on_a_transcript(
    tmp_path: Path, stage: str, key: str, where: int | None, message: str
) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(f"version: 1\nname: a\nmodel: b/c\ndtype: float32\nstages:\n  {stage}: {{kind: ar, {key}}}\n")
    found = check_profile(path)
    assert len(found) == (where is not None)
    for diagnostic in found:
        assert diagnostic.message.startswith(message)
        assert (diagnostic.location.line, diagnostic.location.column) == (5, (where or 0) + len(stage))


def test_a_language_model_has_no_options_of_transcripts() -> None:
    config = EngineConfig.model_validate({**_PROFILE, "stages": {"model": {"kind": "ar"}}})
    with pytest.raises(UsageError, match="has no effect"):
        check_fields({"language": "de", "audio": ["a.wav"]}, Capabilities.of(config), str)
