"""The windows of a sound that is transcribed, and what came of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
from vllm.model_executor.models.interfaces import StreamingTranscriptionPostProcessor

from omni_cli.core.errors import InputError
from omni_cli.models.transcription.long_form import Seeker
from omni_cli.requests.contents import Segment
from omni_cli.requests.events import TextDelta
from omni_cli.requests.outputs import GenerateRequest
from omni_cli.stage.messages import Progress, RequestDone

_OPEN_MARK = re.compile(r"\[[^]]*$")
# More than any time of a sound.
_UNKNOWN_S = 10**9


@dataclass
class SoundWindow:
    """A part of a sound that fits the model's window; its text waits for that of the pieces before it.

    `reader` leaves out what the model writes before the transcript. One that `overlaps` begins before the end of the
    piece before.
    """

    start_s: float
    samples: np.ndarray
    reader: StreamingTranscriptionPostProcessor
    overlaps: bool = False
    text: str = ""
    chunks: list[TextDelta] = field(default_factory=list)
    done: RequestDone | None = None
    num_settled: int = 0
    segments: tuple[Segment, ...] = ()

    def read_whole(self) -> TextDelta:
        """Return the text of a piece that has ended as one chunk."""
        read, chunks = self.reader.process_delta, self.chunks
        text = "".join([*(read(chunk.text, False) for chunk in chunks), read("", True)])
        self.reader = StreamingTranscriptionPostProcessor()
        counts = (chunks[-1].num_input_tokens, chunks[-1].num_output_tokens) if chunks else (0, 0)
        return TextDelta("", text, *counts, tuple(row for chunk in chunks for row in chunk.logprobs or ()))

    def parts_of_speakers(self, model: Any, space: str, end_s: float, *, is_cut: bool) -> Iterator[Segment]:
        """Yield the parts that vLLM finds in the text of a piece; raise `InputError` if there are none.

        vLLM finds none without the time at the end, which a text that is cut lacks; its last part ends at `end_s`.
        """
        parts = model.parse_diarized_transcript(self.text.strip())
        if not parts and is_cut:
            parts = model.parse_diarized_transcript(_OPEN_MARK.sub("", self.text) + f"[{_UNKNOWN_S}]")
        elif not parts:  # as of a prompt that asks for something else
            raise InputError("the transcript does not tell its speakers", hint="ask for another `response_format`")
        for part in parts:
            first_s, last_s = (round(self.start_s + time_s, 3) for time_s in (part.start, part.end))
            last_s = last_s if part.end < _UNKNOWN_S else max(first_s, round(end_s, 3))
            yield Segment(first_s, last_s, space + part.text, (), speaker=part.speaker)


@dataclass
class Transcription:
    """A request with the pieces of its sound; with a `seeker` they follow from one another."""

    request: GenerateRequest
    pieces: list[SoundWindow]
    language: str | None
    added_s: float
    samples: np.ndarray
    sample_rate: int
    seeker: Seeker | None = None
    text: str = ""
    num_sent: int = 0
    num_admitted: int = 0

    def progress(self) -> Progress:
        """Return what the pieces that have ended have."""
        traces = [piece.done.trace for piece in self.pieces if piece.done is not None]
        num_output, num_input = (sum(trace[f"num_{way}_tokens"] for trace in traces) for way in ("output", "input"))
        total_s = len(self.samples) / self.sample_rate
        if self.seeker is not None:
            heard_s = total_s * self.seeker.begin / self.seeker.sound.num_frames
        else:
            heard_s = sum(len(piece.samples) for piece in self.pieces if piece.done is not None) / self.sample_rate
        return Progress(self.request.request_id, num_output, None, "token", num_input, (min(heard_s, total_s), total_s))


def without_first(done: RequestDone, number: int) -> RequestDone:
    """Count the first tokens of an answer, which were forced, to its prompt."""
    if done.text is None or not number:
        return done
    trace = dict(done.trace)
    for name in ("output_token_ids", "token_times_s", "output_logprobs"):
        trace[name] = trace[name] and trace[name][number:]
    trace["num_input_tokens"] += number
    trace["num_output_tokens"] -= number
    return msgspec.structs.replace(done, trace=trace, text=replace(done.text, token_ids=done.text.token_ids[number:]))
