"""`--voice` and `--ref-text`: names of speakers, recordings to clone, and each mistake with its own error."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from safetensors.numpy import save_file

from omni_cli.cli.generate.inputs import decode_specs, read_specs
from omni_cli.config.families import Cloning
from omni_cli.config.loader import load_profile
from omni_cli.core.errors import InputError, UsageError
from omni_cli.engine.describing import get_capabilities
from omni_cli.requests.capabilities import Capabilities, cloning_profiles
from omni_cli.requests.outputs import GenerateRequest
from omni_cli.requests.request_spec import BadRequest, RequestSpec

VIBEVOICE, OMNI, TTS = load_profile("tiny-vibevoice"), load_profile("tiny-omni"), load_profile("tiny-qwen3-tts")
# A family that needs the words of a recording, of two speakers at most.
WITH_TEXT = Cloning(max_voices=2, text="needed", max_s=2.0)


def write_voice(path: Path, *, seconds: float = 0.5, rate: int = 16_000, level: float = 0.5) -> str:
    soundfile.write(path, np.full(int(rate * seconds), level, np.float32), rate)
    return str(path)


def capabilities(cloning: Cloning | None = None) -> Capabilities:
    """Those of VibeVoice, with another declaration if one is given."""
    own = get_capabilities(VIBEVOICE)
    fields = own.fields if cloning is None or cloning.text == "unused" else own.fields | {"ref_text"}
    return own if cloning is None else dataclasses.replace(own, cloning=cloning, fields=fields)


def request_of(own: Capabilities, config: Any = VIBEVOICE, **fields: Any) -> GenerateRequest:
    specs = read_specs({"prompt": "hello", **fields}, None, own)
    (pending,) = decode_specs(specs, config, own)
    return pending.build()


def test_a_voice_is_a_name_or_files(tmp_path: Path) -> None:
    assert request_of(capabilities(), voice=["2"]).speech.speaker == "2"
    first, second = write_voice(tmp_path / "a.wav"), write_voice(tmp_path / "b.flac", rate=8000)
    request = request_of(capabilities(), voice=[first, second])
    assert request.speech.speaker is None
    assert [(voice.sample_rate, voice.text, voice.name) for voice in request.speech.voices] == [
        (16_000, None, f"audio file `{first}`"),
        (8000, None, f"audio file `{second}`"),
    ]
    assert len(request.speech.voices[0].samples) == 8000


def test_the_texts_are_those_of_the_recordings_in_their_order(tmp_path: Path) -> None:
    files = [write_voice(tmp_path / f"{name}.wav") for name in "ab"]
    request = request_of(capabilities(WITH_TEXT), voice=files, ref_text=["first", "second"])
    assert [voice.text for voice in request.speech.voices] == ["first", "second"]


def test_an_earlier_name_of_the_field_in_request_lines(tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    both = {"prompt": "a", "speaker": "1", "voice": "2"}
    lines.write_text("\n".join(map(json.dumps, ({"prompt": "a", "speaker": "1"}, {"prompt": "a"}, both))))
    first, second, wrong = read_specs({"voice": ["3"]}, lines, capabilities())
    assert isinstance(first, RequestSpec) and first.request.speech.speaker == "1"
    assert isinstance(second, RequestSpec) and second.request.speech.speaker == "3"
    assert isinstance(wrong, BadRequest) and str(wrong.error) == "`speaker` and `voice` are the same"


def test_files_are_relative_to_where_they_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a line to the folder of the lines, that of the option to the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    lines = tmp_path / "folder" / "lines.jsonl"
    lines.write_text('{"prompt": "a", "voice": "b.wav"}\n{"prompt": "a"}')
    own, other = read_specs({"voice": ["c.wav"]}, lines, capabilities())
    assert own.files == (tmp_path / "folder" / "b.wav",)
    assert other.files == (tmp_path / "c.wav",)


@pytest.mark.parametrize(
    ("cloning", "fields", "message"),
    [
        (None, {"voice": ["1", "2"]}, "`--voice` must be one speaker's name, or one or several files"),
        (None, {"voice": ["1", "{loud}"]}, "`--voice` must be one speaker's name, or one or several files"),
        (None, {"voice": [" "]}, "`--voice` is empty"),
        (None, {"voice": ["gone.wav"]}, "cannot open the audio file `gone.wav`"),
        (None, {"voice": ["{text}"]}, "cannot read the audio file `{text}`"),
        (None, {"voice": ["{empty}"]}, "the audio file `{empty}` is empty"),
        (None, {"voice": ["{silent}"]}, "the audio file `{silent}` has no sound"),
        (None, {"voice": ["{short}"]}, "the audio file `{short}` is shorter than 0.1 s"),
        (None, {"voice": ["{hour}"]}, "the audio file `{hour}` is longer than 120 s, the maximum"),
        (None, {"voice": ["{loud}"] * 5}, "5 recordings of voices, and this model has at most 4 speakers"),
        (None, {"voice": ["{loud}"], "ref_text": ["a"]}, "`--ref-text` has no effect with profile `tiny-vibevoice`"),
        (WITH_TEXT, {"ref_text": ["a"]}, "`--ref-text` is the text of a recording, which is missing"),
        (WITH_TEXT, {"voice": ["1"], "ref_text": ["a"]}, "`--ref-text` is the text of a recording, which is missing"),
        (WITH_TEXT, {"voice": ["{loud}"]}, "`--ref-text` is missing, which profile `tiny-vibevoice` needs"),
        (WITH_TEXT, {"voice": ["{loud}"] * 2, "ref_text": ["a"]}, "`--ref-text` is given 1 times for 2 recordings"),
        (WITH_TEXT, {"voice": ["{loud}"], "ref_text": [" "]}, "`--ref-text` is empty"),
    ],
)
def test_bad_recordings(cloning: Cloning | None, fields: dict[str, list[str]], message: str, tmp_path: Path) -> None:
    files = {
        "loud": write_voice(tmp_path / "loud.wav"),
        "silent": write_voice(tmp_path / "silent.wav", level=3e-5),
        "short": write_voice(tmp_path / "short.wav", seconds=0.05),
        "hour": write_voice(tmp_path / "hour.wav", seconds=3600, rate=1000),
        "text": str(tmp_path / "text.wav"),
        "empty": str(tmp_path / "empty.wav"),
    }
    (tmp_path / "text.wav").write_text("no sound at all, but words " * 20)
    (tmp_path / "empty.wav").touch()
    given = {name: [value.format(**files) for value in values] for name, values in fields.items()}
    with pytest.raises(UsageError) as failure:
        request_of(capabilities(cloning), **given)
    assert str(failure.value).startswith(message.format(**files))


def test_a_model_that_clones_no_voices_names_those_that_do(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="`--voice`: profile `tiny-omni` does not clone voices") as failure:
        request_of(get_capabilities(OMNI), OMNI, voice=[write_voice(tmp_path / "a.wav")])
    assert failure.value.hint is not None and "tiny-vibevoice" in failure.value.hint
    assert "tiny-vibevoice" in cloning_profiles() and not {"tiny-omni", "tiny-qwen3-tts"} & {*cloning_profiles()}


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        ("custom_voice", {"voice": ["{file}"]}, "this checkpoint does not clone voices"),
        ("custom_voice", {"voice": ["bob"]}, "unknown speaker `bob`"),
        ("custom_voice", {"language": "xx"}, "unknown language `xx`"),
        ("voice_design", {"voice": ["vivian"]}, "unknown speaker `vivian`"),
        ("base", {}, "this checkpoint speaks with cloned voices alone"),
        ("base", {"voice": ["bob"]}, "unknown speaker `bob`: this checkpoint speaks with cloned voices alone"),
        ("base", {"voice": ["{file}"], "instructions": "Slowly."}, "this checkpoint clones voices and takes no"),
    ],
)
def test_what_a_checkpoint_of_a_folder_lacks_is_refused_before_it_is_loaded(
    kind: str, fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    talker = {"codec_language_id": {"english": 1}, "spk_id": {"vivian": 2}}
    own = {"architectures": ["Qwen3TTSForConditionalGeneration"], "tts_model_type": kind, "talker_config": talker}
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(own))
    save_file({"a": np.zeros(1)}, tmp_path / "model/model.safetensors")
    file = write_voice(tmp_path / "a.wav")
    given = {
        name: [item.format(file=file) for item in value] if name == "voice" else value for name, value in fields.items()
    }
    config = TTS.model_copy(update={"model": str(tmp_path / "model")})
    with pytest.raises(InputError) as failure:
        request_of(get_capabilities(config), config, **given)
    assert str(failure.value).startswith(message)


@pytest.mark.parametrize("file", ["config.json", "model_index.json"])
def test_a_checkpoint_of_another_family_is_left_to_the_error_of_loading_it(file: str, tmp_path: Path) -> None:
    (tmp_path / file).write_text('{"architectures": ["LlamaForCausalLM"], "_class_name": "FluxPipeline"}')
    save_file({"a": np.zeros(1)}, tmp_path / "model.safetensors")
    config = TTS.model_copy(update={"model": str(tmp_path)})
    assert request_of(get_capabilities(config), config).prompt == "hello"


def test_a_bad_recording_of_a_line_fails_alone(tmp_path: Path) -> None:
    write_voice(tmp_path / "loud.wav")
    write_voice(tmp_path / "silent.wav", level=0)
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(f'{{"prompt": "a", "voice": "{name}.wav"}}\n' for name in ("loud", "silent")))
    good, bad = decode_specs(read_specs({}, lines, capabilities()), VIBEVOICE, capabilities())
    assert len(good.build().speech.voices) == 1
    assert isinstance(bad, BadRequest) and isinstance(bad.error, InputError) and "has no sound" in str(bad.error)


def test_instructions_are_a_system_message_before_the_text() -> None:
    request = request_of(get_capabilities(TTS), TTS, instructions="Slowly.")
    assert [(message.role, message.parts[0].text) for message in request.messages] == [
        ("system", "Slowly."),
        ("user", "hello"),
    ]
    own = TTS.with_stages([TTS.stages[0].model_copy(update={"system_prompt": "In a low voice."}), TTS.stages[1]])
    assert request_of(get_capabilities(own), own, instructions="Slowly.").messages[0].parts[0].text == (
        "In a low voice.\n\nSlowly."
    )


def test_speech_to_make_has_a_language_and_asks_for_no_transcript() -> None:
    request = request_of(get_capabilities(TTS), TTS, language="English")
    assert request.transcription.language == "English" and not request.transcription.asked
    assert request.modalities is None


@pytest.mark.parametrize("field", ["language", "instructions"])
def test_a_model_that_does_not_take_it_refuses_it(field: str) -> None:
    with pytest.raises(UsageError, match=f"`--{field}` has no effect with profile `tiny-vibevoice`"):
        request_of(capabilities(), **{field: "en"})


def test_a_model_that_hears_needs_the_sound_whose_language_is_given() -> None:
    hears = load_profile("tiny-qwen3-omni")
    with pytest.raises(UsageError, match="`--audio` is missing, whose `--language` is given"):
        request_of(get_capabilities(hears), hears, language="en")
