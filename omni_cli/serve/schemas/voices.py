"""`POST /v1/audio/voices`."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from omni_cli.config.bounds import MAX_NAME_LENGTH
from omni_cli.serve.schemas.fields import Form, Upload
from omni_cli.serve.voice_store import NAME_PATTERN

_NO_CONSENT = ("0", "false", "no", "none", "null")


def _check_name(name: str) -> str:
    if not re.fullmatch(NAME_PATTERN, name):
        raise ValueError("must have 1 to 64 letters, digits, `-` and `_`, with a letter or digit at its beginning")
    return name


def _check_consent(consent: str) -> str:
    if consent.lower() in _NO_CONSENT or consent.isspace():
        raise ValueError("must say that the speaker agrees: a voice is cloned only with consent")
    return consent


class VoiceUpload(Form):
    name: Annotated[str, AfterValidator(_check_name)] = Field(
        description="The voice's name in requests.", json_schema_extra={"pattern": f"^{NAME_PATTERN}$"}
    )
    audio_sample: Upload = Field(description="Some seconds of one speaker: WAV, FLAC, MP3, Ogg, M4A, WebM, ...")
    consent: Annotated[str, AfterValidator(_check_consent)] = Field(
        min_length=1,
        max_length=MAX_NAME_LENGTH,
        json_schema_extra={"pattern": r"\S", "not": {"enum": list(_NO_CONSENT)}},
        description="The speaker's consent: the id of a recording of it, or a sentence. It is kept with the voice.",
    )
    ref_text: str | None = Field(
        None, min_length=1, description="The words of the recording, for models that use them."
    )
