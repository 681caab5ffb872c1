"""A request by the rules of its checkpoint, whose config.json is enough to refuse one before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from omni_cli.checkpoints.derive import read_config
from omni_cli.checkpoints.hub import cached_settings
from omni_cli.checkpoints.resolve import find_folder
from omni_cli.core.errors import InputError
from omni_cli.models.qwen3_tts.family import PROMPT_FRAME
from omni_cli.models.voices import note_on_voice, pick_speaker, text_to_speak
from omni_cli.requests.voices import rate_notes

if TYPE_CHECKING:
    from omni_cli.config.schema import EngineConfig
    from omni_cli.requests.outputs import GenerateRequest

SAMPLE_RATE = 24_000
CLONES, DESIGNS = "base", "voice_design"


@dataclass(frozen=True)
class Spoken:
    """The turn of a text, "" or an instruction, one of the model's speakers, the id of a language; notes on these."""

    text: str
    instruction: str
    speaker: str | None
    language: int | None
    notes: tuple[str, ...]


def read_request(config: Mapping[str, Any], request: GenerateRequest, system_prompt: str | None) -> Spoken:
    """Return what a checkpoint is to speak; `system_prompt` instructs where a request does not.

    Raises `InputError` for what its `config` does not have.
    """
    kind, talker, speech = config["tts_model_type"], config["talker_config"], request.speech
    how, text = text_to_speak(request)
    instruction = "".join(part.text for part in how) or system_prompt or ""
    notes, speaker = rate_notes(speech.voices, SAMPLE_RATE), None
    if kind == CLONES:
        if instruction:
            raise InputError("this checkpoint clones voices and takes no instructions", hint="drop `instructions`")
        if not speech.voices:
            unknown = "" if speech.speaker is None else f"unknown speaker `{speech.speaker}`: "
            hint = "give a recording: `--voice FILE`, `voice` in a line of requests, `ref_audio` over HTTP"
            raise InputError(f"{unknown}this checkpoint speaks with cloned voices alone", hint=hint)
    elif speech.voices:
        raise InputError("this checkpoint does not clone voices", hint="take a checkpoint called `Base`")
    elif kind != DESIGNS:
        speaker = pick_speaker(tuple(talker.get("spk_id") or ()), speech.speaker)
        notes += note_on_voice(speech.speaker, speaker)
        if instruction and config.get("tts_model_size") == "0b6":
            notes += ("this checkpoint of 0.6B does not know instructions, which were left out",)
            instruction = ""
    elif speech.speaker is not None:
        raise InputError(f"unknown speaker `{speech.speaker}`", hint="`instructions` describe this model's voice")
    language = pick_language(talker, request.transcription.language, speaker)
    return Spoken(frame_text(text, raw=request.text.raw), instruction, speaker, language, notes)


def check_request(request: GenerateRequest, config: EngineConfig) -> None:
    """Raise `InputError` for what the checkpoint of a profile does not have, if it is on this machine."""
    folder = find_folder(config.model) or cached_settings(config.model, "config.json")
    own = read_config(folder) if folder is not None and (folder / "config.json").is_file() else {}
    if "tts_model_type" in own:  # or it is another model's, which is refused when it is loaded
        read_request(own, request, getattr(config.stages[0], "system_prompt", None))


def frame_text(text: str, *, raw: bool) -> str:
    """Return the assistant's turn of a text, which a raw prompt is itself. Raises `InputError` for another one."""
    begin, end = PROMPT_FRAME
    if not raw:
        return begin + text + end
    if not (text.startswith(begin) and text.endswith(end) and len(text) > len(begin + end)):
        raise InputError("a raw prompt is a text in the model's own marks", hint=repr(f"{begin}TEXT{end}"))
    return text


def language_name(asked: str | None) -> str:
    """Return the lower-case name of a language by its name or code, `auto` without one."""
    if asked is None:
        return "auto"
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    name = asked.lower()
    return str(LANGUAGES.get(name.partition("-")[0], name))


def pick_language(talker: Mapping[str, Any], asked: str | None, speaker: str | None) -> int | None:
    """Return the id of a language by its name or code, None without one: a dialect's where the speaker has one.

    Raises `InputError` with the list; dialects belong to speakers.
    """
    ids: Mapping[str, int] = talker.get("codec_language_id") or {}
    name, names = language_name(asked), [known for known in ids if "dialect" not in known]
    if name != "auto" and name not in names:
        raise InputError(f"unknown language `{asked}`", hint=f"this model has {', '.join(names)}")
    dialect = (talker.get("spk_is_dialect") or {}).get(speaker)
    return ids[dialect] if dialect and name in ("auto", "chinese") else ids.get(name)
