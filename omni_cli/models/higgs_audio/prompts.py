"""The conversation that ends with the text to speak: a scene, and voices with their words as turns before it."""

from __future__ import annotations

from typing import Any

from omni_cli.errors import InputError
from omni_cli.inputs.voices import at_rate, check_voices
from omni_cli.models.higgs_audio.family import CLONING, SPEAKERS
from omni_cli.models.voices import speaker_for
from omni_cli.outputs import GenerateRequest, Message, Part

# From the model's own examples.
_SYSTEM, _SCENE = "Generate audio following instruction.", "Audio is recorded from a quiet room."


def make_conversation(request: GenerateRequest, scene_text: str | None = None) -> list[dict[str, object]]:
    """Return a request's messages for the processor's chat template.

    A system message describes the scene, else `scene_text`, and the voices of unknown words are in it. One with words
    is a turn that was spoken before. Raises `InputError` for a request that the model cannot speak.
    """
    messages = list(request.messages)
    is_described = bool(messages) and messages[0].role == "system"
    scene = messages.pop(0).parts if is_described else (Part("text", scene_text or _SCENE),)
    turns: list[tuple[str, tuple[Part, ...]]] = []
    for index, voice in enumerate(request.voices):
        if voice.text:
            tag = f"[SPEAKER{index}] " if len(request.voices) > 1 else ""
            turns += [("user", (Part("text", tag + voice.text),)), ("assistant", (Part("audio"),))]
        else:
            scene = (*scene, Part("text", f"SPEAKER{index}:"), Part("audio"))
    text = _tagged(_get_text(request, messages), request.speaker)
    turns = [("system", (Part("text", _SYSTEM),)), ("scene", scene), *turns, ("user", (Part("text", text),))]
    return [
        {"role": role, "content": [{"type": part.type, "text": part.text} for part in parts]} for role, parts in turns
    ]


def _get_text(request: GenerateRequest, messages: list[Message]) -> str:
    """Return the text to speak, the only message beside that of the scene. Raises `InputError`."""
    text = request.prompt or ""
    if request.reply is not None:
        text = request.reply
    elif messages:
        if [message.role for message in messages] != ["user"] or any(part.type != "text" for part in messages[0].parts):
            raise InputError("this model speaks one message of the role `user`, a text, after one of `system` at most")
        text = "".join(part.text for part in messages[0].parts)
    if not text.strip():
        raise InputError("the prompt is empty")
    return text


def _tagged(text: str, speaker: str | None) -> str:
    """Tag a text with its speaker, if one is named. Raises `InputError` for one that the model does not have."""
    if speaker is None:
        return text
    number = speaker_for(speaker, SPEAKERS)
    if number not in SPEAKERS:
        raise InputError(f"unknown speaker `{number}`", hint=f"this model's speakers are {', '.join(SPEAKERS)}")
    if "[SPEAKER" in text:
        raise InputError("a text with turns names its speakers itself", hint="drop the speaker")
    return f"[SPEAKER{number}] {text}"


def make_inputs(processor: Any, request: GenerateRequest, scene_text: str | None = None) -> Any:
    """Return the inputs of transformers' `processor` for a request; `scene_text` describes the scene by default.

    Raises `InputError` for one that the model cannot speak.
    """
    if request.raw:
        return _raw_inputs(processor, request)
    check_voices(request.voices, CLONING)
    conversation = make_conversation(request, scene_text)
    text = processor.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    rate = processor.feature_extractor.sampling_rate
    media: dict[str, Any] = {}
    if request.voices:  # in the order of the conversation: those of the scene first
        media["audio"] = [at_rate(voice, rate) for voice in sorted(request.voices, key=lambda voice: bool(voice.text))]
    return processor(text=text, sampling_rate=rate, add_special_tokens=False, return_tensors="pt", **media)


def _raw_inputs(processor: Any, request: GenerateRequest) -> Any:
    if request.speaker is not None or request.voices:
        what = "voices" if request.voices else "speaker"
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
