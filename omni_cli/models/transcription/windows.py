"""The windows of a sound that is transcribed, and what came of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from vllm.model_executor.models.interfaces import StreamingTranscriptionPostProcessor

from omni_cli.models.transcription.seeking import Seeker
from omni_cli.requests.contents import Segment, Word
from omni_cli.requests.outputs import GenerateRequest
from omni_cli.stage.messages import RequestDone, TextChunk


@dataclass
class SoundWindow:
    """A part of a sound that fits the model's window; its text waits for that of the pieces before it.

    `reader` leaves out what the model writes before the transcript.
    """

    start_s: float
    samples: np.ndarray
    reader: StreamingTranscriptionPostProcessor
    chunks: list[TextChunk] = field(default_factory=list)
    has_text: bool = False
    done: RequestDone | None = None
    num_settled: int = 0
    segments: tuple[Segment, ...] = ()
    words: tuple[Word, ...] = ()


@dataclass
class Transcription:
    """A request with the pieces of its sound; with a `seeker` they follow from one another."""

    request: GenerateRequest
    pieces: list[SoundWindow]
    language: str | None
    added_s: float
    samples: np.ndarray
    seeker: Seeker | None = None
    text: str = ""
    num_sent: int = 0
    num_admitted: int = 0
