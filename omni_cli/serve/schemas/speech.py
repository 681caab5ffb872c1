"""`POST /v1/audio/speech`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from omni_cli.config.sampling_keys import Tokens
from omni_cli.serve.schemas.fields import Items, Only, Seed, Strict, Voice, VoiceId

Words = Annotated[str, Field(min_length=1)]

# Of `sample_rate`; the other formats have all of them.
OPUS_RATES = (8000, 12000, 16000, 24000, 48000)


class SpeechRequest(Strict):
    model: str | None = Field(None, description="The model's name in `GET /v1/models`.")
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
    max_audio_tokens: Tokens | None = Field(None, description="Maximum of tokens that become sound.")

    instructions: str | None = Field(None, description="How to speak: added to the system prompt, if it has an effect.")

    speed: Annotated[object, Only(1, 1.0)] = None

    @property
    def voices(self) -> Sequence[str | VoiceId | None]:
        return self.voice if isinstance(self.voice, list) else [self.voice]

    @property
    def audio_format(self) -> str:
        return self.response_format or ("pcm" if self.stream_format == "sse" else "mp3")
