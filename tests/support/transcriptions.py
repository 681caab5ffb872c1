"""Answers of a speech recognition stage, run in this process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from omni_cli.requests.events import TextDelta
from omni_cli.requests.media.reading import load_audio
from omni_cli.requests.outputs import GenerateRequest
from support.request_fields import with_fields
from support.stage_specs import derived_stages, load, run_requests


def answer(
    folder: str, requests: Sequence[dict[str, Any]], aligner: str | None = None, stop: Sequence[str] = ()
) -> dict[str, Any]:
    """Run `requests` (`seed` and `seconds` of a sound, or a `file`; and other fields); `stop` is the profile's.

    Return for each what it gives `alone`, and `once` with the others: token ids, the text, that of its chunks joined,
    language and segments, or its error.
    """
    own = derived_stages(folder)[0]
    sampling = own.sampling.model_copy(update={"stop": list(stop)} if stop else {})
    stage = load(own.model_copy(update={"aligner": aligner, "sampling": sampling}), folder)
    stage.run_warm_up()
    made = [stage_request(str(number), **request) for number, request in enumerate(requests)]
    alone = [_read(end) for request in made for end in run_requests(stage, [request])]
    stage.engine.reset_prefix_cache()
    stage.engine.reset_mm_cache()
    stage.engine.reset_encoder_cache()
    once = [_read(end) for end in run_requests(stage, made)]
    left = [len(stage.active), len(stage._transcriptions)]
    stage.close()
    return {"alone": alone, "once": once, "left": left}


def _read(end: str | list[Any]) -> str | dict[str, Any]:
    if isinstance(end, str):
        return end
    *chunks, done = end
    transcript = done.text.transcript
    return {
        "token_ids": list(done.text.token_ids),
        "text": done.text.text,
        "chunks": "".join(chunk.text for chunk in chunks if isinstance(chunk, TextDelta)),
        "language": None if transcript is None else transcript.language,
        "segments": None
        if transcript is None
        else [[part.start_s, part.end_s, part.text] for part in transcript.segments],
        "languages": [[part.seek, part.language] for part in (transcript and transcript.segments) or ()],
        "speakers": [part.speaker for part in (transcript and transcript.segments) or ()],
        "words": [[word.text, word.start_s, word.end_s] for word in (transcript and transcript.words) or ()],
        "num_input_tokens": done.trace["num_input_tokens"],
        "notes": list(done.notes),
    }


def stage_request(request_id: str, **fields: Any) -> GenerateRequest:
    """Return a greedy request."""
    seed, seconds, file = fields.pop("seed", None), fields.pop("seconds", 0.5), fields.pop("file", None)
    sounds = (load_audio(Path(file), lambda note: None),) if file else ()
    sounds = sounds if seed is None else (voice(seed, seconds),)
    sampling = {"max_tokens": fields.pop("max_tokens", 12), **fields.pop("sampling", {})}
    return with_fields(GenerateRequest(request_id), audio=sounds, sampling=sampling, **fields)


def voice(seed: int, seconds: float, sample_rate: int = 22_050) -> tuple[Any, int]:
    """Return tones that change twice per second, with pauses."""
    rng = np.random.default_rng(seed)
    times = np.arange(round(seconds * sample_rate)) / sample_rate
    pitches = rng.uniform(100, 2000, size=int(seconds * 2) + 1)[(times * 2).astype(int)]
    return (0.4 * np.sin(2 * np.pi * pitches * times) * (times % 1 < 0.8)).astype(np.float32), sample_rate
