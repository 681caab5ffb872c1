"""`POST /v1/audio/transcriptions` and `/v1/audio/translations`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from omni_cli.config.bounds import MAX_NAME_LENGTH, MAX_TEMPERATURE
from omni_cli.serve.schemas.fields import Form, Items, Only, Upload


class TranslationRequest(Form):
    file: Upload = Field(description="The sound: WAV, FLAC, MP3, Ogg, M4A, WebM, ...")
    model: str | None = Field(None, description="The model's name in `GET /v1/models`.")
    prompt: str | None = Field(None, description="Text that came before, or words that may occur.")
    response_format: Literal["json", "text", "srt", "vtt", "verbose_json"] | None = Field(
        None, description="Default: `json`. The last three have times."
    )
    temperature: float | None = Field(None, ge=0, le=MAX_TEMPERATURE, description="Default: 0, which is greedy.")

    @property
    def has_times(self) -> bool:
        return self.response_format in ("srt", "vtt", "verbose_json")


class TranscriptionRequest(TranslationRequest):
    language: str | None = Field(
        None, min_length=1, max_length=MAX_NAME_LENGTH, description="ISO 639-1 code. Default: detected."
    )
    stream: bool | None = Field(None, description="Send the text as events while it is made.")
    timestamp_granularities: Items[Literal["segment"]] = Field(
        default=[],
        alias="timestamp_granularities[]",
        description="With `verbose_json`; times of words are not supported.",
    )

    chunking_strategy: Annotated[object, Only("auto")] = None
    include: Annotated[object, Only()] = Field(None, alias="include[]")
    known_speaker_names: Annotated[object, Only()] = Field(None, alias="known_speaker_names[]")
    known_speaker_references: Annotated[object, Only()] = Field(None, alias="known_speaker_references[]")
