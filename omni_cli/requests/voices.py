"""Speech in requests: reference recordings of voices, with checks for every model that clones, and texts to speak."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from omni_cli.config.families import Cloning
from omni_cli.config.schema import ARStageConfig, EngineConfig
from omni_cli.core.errors import InputError
from omni_cli.requests.contents import ReferenceVoice
from omni_cli.requests.outputs import GenerateRequest, Message, Modality, Part, prompt_message

MIN_VOICE_S = 0.1
# A sample of 16 bits is at least 3e-5: dither, and what a codec makes of silence, is no sound.
_SILENCE = 1e-4
# An omni model speaks its own answers, so a text is passed as its answer to this instruction.
_READ_ALOUD = "Read the following text aloud, word for word, and say nothing else:\n\n"


def check_voices(voices: Sequence[ReferenceVoice], cloning: Cloning | None) -> None:
    """Raise `InputError` for recordings that a model cannot clone; `cloning` is None for one that clones no voice."""
    if not voices:
        return
    if cloning is None:
        raise InputError("this model does not clone voices", hint="name one of its speakers")
    if len(voices) > cloning.max_voices:
        most = "one speaker" if cloning.max_voices == 1 else f"at most {cloning.max_voices} speakers"
        raise InputError(f"{len(voices)} recordings of voices, and this model has {most}", hint="drop the others")
    for voice in voices:
        if len(voice.samples) > cloning.max_s * voice.sample_rate:
            raise InputError(f"the {voice.name} is longer than {cloning.max_s:g} s", hint="cut it: 10 s are enough")
        if len(voice.samples) < MIN_VOICE_S * voice.sample_rate:
            raise InputError(f"the {voice.name} is shorter than {MIN_VOICE_S:g} s", hint="use some seconds of speech")
        if abs(voice.samples).max() < _SILENCE:
            raise InputError(f"the {voice.name} has no sound", hint="use some seconds of speech")
        if cloning.text == "needed" and not voice.text:
            message = f"the words of the {voice.name} are missing, which this model needs"
            raise InputError(message, hint="give its `ref_text`")


def rate_notes(voices: Sequence[ReferenceVoice], rate: int) -> tuple[str, ...]:
    """Return a sentence for each recording that is resampled to a model's rate in Hz."""
    return tuple(
        f"the {voice.name} was resampled from {voice.sample_rate} Hz to the model's {rate} Hz"
        for voice in voices
        if voice.sample_rate != rate
    )


def make_spoken_request(request: GenerateRequest, text: str) -> GenerateRequest:
    """Return the request with a text to speak: the first stage gets it as its own answer, and the others speak it."""
    options = dataclasses.replace(request.text, reply=text)
    modalities = frozenset[Modality]({"audio"})
    return dataclasses.replace(request, prompt=_READ_ALOUD + text, text=options, modalities=modalities)


def with_instructions(request: GenerateRequest, config: EngineConfig, instructions: str) -> GenerateRequest:
    """Return the request with a system message before its prompt: the profile's system prompt, then instructions."""
    first = config.stages[0]
    own = first.system_prompt if isinstance(first, ARStageConfig) else None
    message = Message("system", (Part("text", "\n\n".join(filter(None, (own, instructions)))),))
    return dataclasses.replace(request, messages=(message, prompt_message(request)))
