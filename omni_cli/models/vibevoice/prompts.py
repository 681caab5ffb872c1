"""The prompt of a text for one to four speakers, and the voices that speak them."""

from __future__ import annotations

import re
from typing import Any

from omni_cli.core.errors import InputError
from omni_cli.models.vibevoice.family import CLONING, SPEAKERS
from omni_cli.models.voices import speaker_for
from omni_cli.requests.encoding import resample
from omni_cli.requests.outputs import GenerateRequest
from omni_cli.requests.voices import check_voices

_TURN = re.compile(r"^Speaker (\d+):[ \t]*", re.MULTILINE | re.IGNORECASE)


def read_turns(request: GenerateRequest) -> list[tuple[str, str]]:
    """Return speakers and words of a text with lines `Speaker 1: hello`, else one turn of the request's speaker.

    Speakers 1 to 4 of a text without 0 are those from 0 to 3, as in the released examples. Raises `InputError` for a
    text or a speaker that the model does not have.
    """
    text = request.text.reply or request.prompt
    text = (text or "\n".join(part.text for message in request.messages for part in message.parts)).strip()
    if not text:
        raise InputError("the prompt is empty")
    parts = _TURN.split(text)
    if parts[0].strip() or len(parts) == 1:
        parts = ["", speaker_for(request.speech.speaker or SPEAKERS[0], SPEAKERS), text]
    elif request.speech.speaker is not None:
        raise InputError("a text with turns names its speakers itself", hint="drop the speaker")
    turns = [(speaker, said.strip()) for speaker, said in zip(parts[1::2], parts[2::2], strict=True)]
    names = {speaker for speaker, _ in turns}
    if str(len(SPEAKERS)) in names and names <= {str(int(name) + 1) for name in SPEAKERS}:
        turns = [(str(int(speaker) - 1), said) for speaker, said in turns]
    unknown = [speaker for speaker, _ in turns if speaker not in SPEAKERS]
    if unknown:
        raise InputError(f"unknown speaker `{unknown[0]}`", hint=f"this model's speakers are {', '.join(SPEAKERS)}")
    return turns


def make_conversation(turns: list[tuple[str, str]], num_voices: int) -> list[dict[str, object]]:
    """Return messages for the processor's chat template, in which the first `num_voices` speakers have a voice.

    Raises `InputError` for more voices than speakers.
    """
    speakers = list(dict.fromkeys(speaker for speaker, _ in turns))
    if num_voices > len(speakers):
        raise InputError(
            f"{num_voices} recordings of voices, and {len(speakers)} {'speakers' if len(speakers) > 1 else 'speaker'}",
            hint="give one for each speaker, in the order in which they first speak",
        )
    voiced = speakers[:num_voices]
    messages: list[dict[str, object]] = []
    for speaker, said in turns:
        content: list[dict[str, object]] = [{"type": "text", "text": said}]
        if speaker in voiced:
            voiced.remove(speaker)
            content.append({"type": "audio"})
        messages.append({"role": speaker, "content": content})
    return messages


def make_inputs(processor: Any, request: GenerateRequest) -> Any:
    """Return the inputs of transformers' `processor` for a request.

    Raises `InputError` for one that the model cannot speak.
    """
    if request.text.raw:
        if request.speech.speaker is not None or request.speech.voices:
            what = "voices" if request.speech.voices else "speaker"
            raise InputError(f"a raw prompt has no {what} beside it", hint=f"drop the {what}, or `raw`")
        return processor.tokenizer(request.prompt, return_tensors="pt")
    check_voices(request.speech.voices, CLONING)
    messages = make_conversation(read_turns(request), len(request.speech.voices))
    text = processor.apply_chat_template(messages, tokenize=False)
    rate = processor.feature_extractor.sampling_rate
    voices = [resample(voice.samples, voice.sample_rate, rate) for voice in request.speech.voices]
    media = {"audio": voices, "sampling_rate": rate} if voices else {}
    return processor(text=text, return_tensors="pt", **media)
