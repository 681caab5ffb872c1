"""Rules of long sounds: where a window's text ends and the next window begins, as in transformers' long form.

A model that writes times goes on from its last one. Times are counted in frames of the spectrogram.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

Verdict = Literal["keep", "again", "skip"]
# A token in so many seconds is less than any speech has.
_MIN_PACE_S = 5.0


@dataclass(frozen=True)
class HeardPart:
    """Tokens between two times, these included; seconds from the beginning of the sound."""

    start_s: float
    end_s: float
    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class TimeTokens:
    """The times of a model: `first_id` is the token of 0 s, each further one is `frames_per_step` later."""

    first_id: int
    frames_per_step: int
    frame_s: float

    def read_window(self, ids: Sequence[int], begin: int, num_frames: int) -> tuple[list[HeardPart], int]:
        """Return the parts of a window's tokens, without its end, and the number of frames to the next window.

        The window has `num_frames` from the frame `begin` on. What follows the last pair of times is left to the next
        window, unless a single time ends it: nothing is said after that.
        """
        offset_s, step_s = begin * self.frame_s, self.frames_per_step * self.frame_s
        ends = self._pairs(ids)
        if not ends:
            times = [token_id - self.first_id for token_id in ids if token_id >= self.first_id]
            steps = times[-1] if times and times[-1] else num_frames // self.frames_per_step
            return [HeardPart(offset_s, offset_s + steps * step_s, tuple(ids))], num_frames
        is_closed = ids[-2] < self.first_id <= ids[-1]
        if is_closed:
            ends.append(len(ids))
        else:
            ends[-1] += 1
        parts = []
        for start, end in pairwise([0, *ends]):
            times = [token_id - self.first_id for token_id in ids[start:end] if token_id >= self.first_id]
            last = times[-1] if is_closed or end < ends[-1] else times[-2]
            parts.append(HeardPart(offset_s + times[0] * step_s, offset_s + last * step_s, tuple(ids[start:end])))
        if is_closed:
            return parts, num_frames
        return parts, (ids[ends[-1] - 2] - self.first_id) * self.frames_per_step

    def count_settled(self, ids: Sequence[int]) -> int:
        """Count the tokens of an unfinished window that will be kept: those before the last pair's second time."""
        return max(self._pairs(ids), default=0)

    def stops_at_once(self, ids: Sequence[int], num_frames: int) -> bool:
        """Return True for a window that hardly has a word, as speech has behind a text of another kind."""
        words = [token_id for token_id in ids if token_id < self.first_id]
        is_open = len(ids) - len(words) < 2
        return not words or (is_open and len(words) * _MIN_PACE_S < num_frames * self.frame_s)

    def _pairs(self, ids: Sequence[int]) -> list[int]:
        """Return the positions of the second times of pairs."""
        return [n for n in range(1, len(ids)) if ids[n - 1] >= self.first_id <= ids[n]]

    def tokens_before(self, parts: Iterable[Sequence[int]], limit: int) -> list[int]:
        """Return the last `limit` tokens of what was written before a window, with one time at the end of a part."""
        ids: list[int] = []
        for part in parts:
            ends_twice = len(part) > 2 and part[-2] >= self.first_id
            ids += part[:-1] if ends_twice else part
        return ids[-limit:]


@dataclass(frozen=True)
class Thresholds:
    """Signs that a window was misheard; it is heard again at the next of the temperatures. None is off."""

    temperatures: tuple[float, ...] = (0.0,)
    compression_ratio: float | None = None
    logprob: float | None = None
    no_speech: float | None = None

    @classmethod
    def of(cls, config: Any) -> Thresholds:
        """Read a checkpoint's generation config."""
        given = getattr(config, "temperature", None)
        limits = {
            name: getattr(config, f"{name}_threshold", None) for name in ("compression_ratio", "logprob", "no_speech")
        }
        return cls(tuple(map(float, given)) if isinstance(given, list | tuple) and given else (0.0,), **limits)

    @property
    def are_off(self) -> bool:
        return self.compression_ratio is None and self.logprob is None

    def judge(self, ratio: float, avg_logprob: float | None, no_speech_prob: float | None) -> Verdict:
        """Return what becomes of a window: silence is skipped, and what seems misheard is heard again."""
        is_unsure = self.logprob is not None and avg_logprob is not None and avg_logprob < self.logprob
        if is_unsure and self.no_speech is not None and (no_speech_prob or 0.0) > self.no_speech:
            return "skip"
        is_repeated = self.compression_ratio is not None and ratio > self.compression_ratio
        return "again" if is_unsure or is_repeated else "keep"


def compression_ratio(content: bytes) -> float:
    """Return how many times smaller zlib makes it: much smaller is a text that repeats itself."""
    return len(content) / len(zlib.compress(content))


def token_bytes(ids: Sequence[int], vocab_size: int) -> bytes:
    """Return token ids in as many bytes each as transformers packs them in."""
    length = (vocab_size.bit_length() - 1) // 8 + 1
    return b"".join(token_id.to_bytes(length, "little") for token_id in ids)
