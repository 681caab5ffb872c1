"""`POST /v1/audio/speech`, `/v1/audio/voices`, `/v1/audio/transcriptions` and `/v1/audio/translations`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from omni_cli.config.bounds import MAX_NAME_LENGTH
from omni_cli.serve.schemas.fields import Form, Items, ModelBody, Only, Seed, Upload, Voice, VoiceId, with_fields_of
from omni_cli.serve.voice_store import NAME_PATTERN

Words = Annotated[str, Field(min_length=1)]

_NO_CONSENT = ("0", "false", "no", "none", "null")
# Of `sample_rate`; the other formats have all of them.
OPUS_RATES = (8000, 12000, 16000, 24000, 48000)


@with_fields_of("speech")
class SpeechRequest(ModelBody):
    input: str = Field(min_length=1, description="The text to speak.")
    voice: Voice | VoiceId | Items[Voice] | None = Field(
        None,
        description="A speaker of the model, or a saved voice; for a text with several speakers, a saved voice for "
        "each. Default: the model's first speaker.",
    )
    ref_audio: str | Items[str] | None = Field(
        None,
        description="The recording of a voice to clone, as base64 or by URL; one for each speaker of the text, in the "
        "order in which they first speak.",
    )
    ref_text: Words | Items[Words] | None = Field(
        None, description="The words of each recording, for models that use them."
    )
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] | None = Field(
        None, description="Default: `mp3`; of events, `pcm`."
    )
    stream_format: Literal["audio", "sse"] | None = Field(
        None, description="Send the speech while it is made, as raw bytes or as events."
    )
    sample_rate: Literal[8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000] | None = Field(
        None, description="Samples per second. Default: the model's."
    )
    seed: Seed | None = None

    instructions: str | None = Field(None, description="How to speak: added to the system prompt, if it has an effect.")

    speed: Annotated[object, Only(1, 1.0)] = None

    @property
    def voices(self) -> Sequence[str | VoiceId | None]:
        return self.voice if isinstance(self.voice, list) else [self.voice]

    @property
    def audio_format(self) -> str:
        return self.response_format or ("pcm" if self.stream_format == "sse" else "mp3")


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


class SoundRequest(ModelBody, Form):
    file: Upload = Field(description="The sound: WAV, FLAC, MP3, Ogg, M4A, WebM, ...")
    prompt: str | None = Field(None, description="Text that came before, or words that may occur.")
    response_format: Literal["json", "text", "srt", "vtt", "verbose_json", "diarized_json"] | None = Field(
        None, description="Default: `json`. The last ones have times."
    )


@with_fields_of("translations")
class TranslationRequest(SoundRequest):
    response_format: Literal["json", "text", "srt", "vtt", "verbose_json"] | None = Field(
        None, description="Default: `json`. The last three have times."
    )


@with_fields_of("transcriptions")
class TranscriptionRequest(SoundRequest):
    stream: bool | None = Field(None, description="Send the text as events while it is made.")
    timestamp_granularities: Items[Literal["segment", "word"]] = Field(
        default=[],
        alias="timestamp_granularities[]",
        description="With `verbose_json`: times of parts, of words (Whisper), or of both. Default: of parts.",
    )

    chunking_strategy: Annotated[object, Only("auto")] = None
    include: Annotated[object, Only()] = Field(None, alias="include[]")
    known_speaker_names: Annotated[object, Only()] = Field(None, alias="known_speaker_names[]")
    known_speaker_references: Annotated[object, Only()] = Field(None, alias="known_speaker_references[]")
