"""A request to speak a given text."""

from __future__ import annotations

import dataclasses

from omni_cli.outputs import GenerateRequest, Modality

# An omni model speaks its own answers, so a text is passed as its answer to this instruction.
_READ_ALOUD = "Read the following text aloud, word for word, and say nothing else:\n\n"


def spoken(request: GenerateRequest, text: str) -> GenerateRequest:
    """Return the request with a text to speak: the first stage gets it as its own answer, and the others speak it."""
    return dataclasses.replace(
        request, prompt=_READ_ALOUD + text, reply=text, modalities=frozenset[Modality]({"audio"})
    )
