"""The conversation that ends with the text to speak: a scene, and turns that were spoken before, with their sound."""

from __future__ import annotations

from typing import Any

import numpy as np
import soxr

from omni_cli.errors import InputError
from omni_cli.models.voices import speaker_for
from omni_cli.outputs import GenerateRequest, Message, Part

# Tags of turns in a text: `[SPEAKER1] Hello.`
SPEAKERS = ("0", "1", "2", "3")
# From the model's own examples.
_SYSTEM, _SCENE = "Generate audio following instruction.", "Audio is recorded from a quiet room."
_MIN_VOICE_S, _MAX_VOICE_S = 0.1, 60


def make_conversation(request: GenerateRequest, scene_text: str | None = None) -> list[dict[str, object]]:
    """Return a request's messages for the processor's chat template.

    A system message describes the scene, else `scene_text`. Recordings beside a plain text are those of its speakers,
    of unknown words; in messages, the assistant's turns are recordings of the user's before them.
    Raises `InputError` for a conversation that the model cannot continue.
    """
    messages = list(request.messages)
    scene = (
        messages.pop(0).parts if messages and messages[0].role == "system" else (Part("text", scene_text or _SCENE),)
    )
    if request.reply is not None:
        messages = [Message("user", (Part("text", request.reply),))]
    elif not messages:
        messages = [Message("user", (Part("text", request.prompt or ""),))]
    num_placed = sum(part.type == "audio" for message in messages for part in message.parts)
    if not num_placed:
        described = [(Part("text", f"SPEAKER{index}:"), Part("audio")) for index in range(len(request.audio))]
        scene = (*scene, *(part for pair in described for part in pair))
        num_placed = len(request.audio)
    if num_placed != len(request.audio):
        raise InputError(f"{len(request.audio)} recordings, and {num_placed} places for one in the messages")
    for message in messages:
        _check_turn(message)
    if messages[-1].role != "user":
        raise InputError("the last message is the text to speak, of the role `user`")
    tagged = [*messages[:-1], _of_speaker(messages[-1], request.speaker)]
    turns = [("system", (Part("text", _SYSTEM),)), ("scene", scene), *((turn.role, turn.parts) for turn in tagged)]
    return [
        {"role": role, "content": [{"type": part.type, "text": part.text} for part in parts]} for role, parts in turns
    ]


def _check_turn(message: Message) -> None:
    kinds = [part.type for part in message.parts]
    if message.role == "assistant" and kinds != ["audio"]:
        raise InputError("this model's own turns are sound: give each `assistant` message one recording")
    if message.role == "user" and any(kind != "text" for kind in kinds):
        raise InputError("a recording is a message of the role `assistant`, after the one with its words")
    if message.role not in ("user", "assistant"):
        raise InputError(f"this model has no messages of the role `{message.role}` there")
    if message.role == "user" and not "".join(part.text for part in message.parts).strip():
        raise InputError("the prompt is empty")


def _of_speaker(message: Message, speaker: str | None) -> Message:
    """Tag a text with its speaker, if one is named. Raises `InputError` for one that the model does not have."""
    if speaker is None:
        return message
    number = speaker_for(speaker, SPEAKERS)
    if number not in SPEAKERS:
        raise InputError(f"unknown speaker `{number}`", hint=f"this model's speakers are {', '.join(SPEAKERS)}")
    if any("[SPEAKER" in part.text for part in message.parts):
        raise InputError("a text with turns names its speakers itself", hint="drop the speaker")
    return Message(message.role, (Part("text", f"[SPEAKER{number}] "), *message.parts))


def make_inputs(processor: Any, request: GenerateRequest, scene_text: str | None = None) -> Any:
    """Return the inputs of transformers' `processor` for a request; `scene_text` describes the scene by default.

    Raises `InputError` for one that the model cannot speak.
    """
    if request.raw:
        return _raw_inputs(processor, request)
    conversation = make_conversation(request, scene_text)
    text = processor.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    rate = processor.feature_extractor.sampling_rate
    media: dict[str, Any] = {}
    if request.audio:
        media["audio"] = [_voice(samples, own_rate, rate) for samples, own_rate in request.audio]
    return processor(text=text, sampling_rate=rate, add_special_tokens=False, return_tensors="pt", **media)


def _raw_inputs(processor: Any, request: GenerateRequest) -> Any:
    if request.speaker is not None or request.audio:
        what = "voices" if request.audio else "speaker"
        raise InputError(f"a raw prompt has no {what} beside it", hint=f"drop the {what}, or `raw`")
    inputs = processor.tokenizer(request.prompt, return_tensors="pt")
    ids = inputs["input_ids"][0].tolist()
    if ids[-1:] != [processor.audio_bos_token_id]:
        raise InputError(
            "a raw prompt ends where the sound begins", hint=f"put `{processor.audio_bos_token}` at its end"
        )
    num_codebooks = processor.audio_tokenizer.config.num_quantizers
    if len(ids) < num_codebooks:
        raise InputError(f"a raw prompt has as many tokens as there are codebooks, {num_codebooks}, or more")
    if {processor.audio_token_id, processor.audio_delay_token_id} & set(ids):
        raise InputError(f"a raw prompt has no sound in place of `{processor.audio_token}`")
    return inputs


def _voice(samples: np.ndarray, own_rate: int, rate: int) -> np.ndarray:
    """Return a recording at another rate; raises `InputError` for silence, and for one of another length."""
    if not np.any(samples):
        raise InputError("the recording of a voice has no sound")
    if not _MIN_VOICE_S * own_rate <= len(samples) <= _MAX_VOICE_S * own_rate:
        length = len(samples) / own_rate
        raise InputError(
            f"the recording of a voice has {length:.2f} s; {_MIN_VOICE_S} to {_MAX_VOICE_S} s are possible",
            hint="cut it: 10 s are enough" if length > _MAX_VOICE_S else "use a longer one",
        )
    resampled: np.ndarray = soxr.resample(samples, own_rate, rate)
    return resampled
