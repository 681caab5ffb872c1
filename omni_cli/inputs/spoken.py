"""A request to speak a given text."""

from __future__ import annotations

import dataclasses

from omni_cli.outputs import GenerateRequest, Message, Modality, Part

# An omni model speaks its own answers, so a text is passed as its answer to this instruction.
_READ_ALOUD = "Read the following text aloud, word for word, and say nothing else:\n\n"


def spoken(request: GenerateRequest, text: str, system_prompt: str | None = None) -> GenerateRequest:
    """Return the request with a text to speak: the first stage gets it as its own answer, and the others speak it.

    `system_prompt` is in place of the stage's own.
    """
    prompt = _READ_ALOUD + text
    messages: tuple[Message, ...] = ()
    if system_prompt is not None:
        messages = (Message("system", (Part("text", system_prompt),)), Message("user", (Part("text", prompt),)))
    return dataclasses.replace(
        request, prompt=prompt, messages=messages, reply=text, modalities=frozenset[Modality]({"audio"})
    )
