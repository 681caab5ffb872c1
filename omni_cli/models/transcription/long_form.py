"""Rules of long sounds: where a window's text ends and the next window begins, as in transformers' long form.

A model that writes times goes on from its last one. Times are counted in frames of the spectrogram.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from transformers import GenerationConfig
from transformers.models.whisper.generation_whisper import WhisperGenerationMixin

from omni_cli.requests.contents import Segment

Verdict = Literal["keep", "again", "skip"]
# A token in so many seconds is less than any speech has.
_MIN_PACE_S = 5.0


@dataclass(frozen=True)
class TimeTokens:
    """The times of a model: `first_id` is the token of 0 s, each further one is `frames_per_step` later.

    A window has `size` frames; `max_tokens` bounds its prompt and its text, `end_ids` end it, and `before_id` comes
    before earlier text.
    """

    first_id: int
    frames_per_step: int
    frame_s: float
    size: int
    max_tokens: int
    vocab_size: int
    end_ids: frozenset[int]
    before_id: int

    @classmethod
    def of(cls, own: GenerationConfig, sizes: Any, extractor: Any, tokenizer: Any) -> TimeTokens:
        """Read those of a checkpoint."""
        ends = own.eos_token_id
        return cls(
            first_id=own.no_timestamps_token_id + 1,
            frames_per_step=extractor.nb_max_frames // sizes.max_source_positions,
            frame_s=extractor.hop_length / extractor.sampling_rate,
            size=extractor.nb_max_frames,
            max_tokens=sizes.max_target_positions,
            vocab_size=sizes.vocab_size,
            end_ids=frozenset([ends] if isinstance(ends, int) else ends),
            before_id=tokenizer.convert_tokens_to_ids("<|startofprev|>"),
        )

    def read_window(self, ids: Sequence[int], begin: int, num_frames: int) -> tuple[list[Segment], int]:
        """Return the parts of a window's tokens, still without text, and the number of frames to the next window.

        The window has `num_frames` from the frame `begin` on. What follows the last pair of times is left to the next
        window, unless a single time ends it: nothing is said after that.
        """
        parts, step = WhisperGenerationMixin._retrieve_segment(
            seek_sequence=torch.tensor(ids), seek_outputs=[None], prev_idx=0, idx=0, timestamp_begin=self.first_id,
            time_offset=torch.tensor([begin * self.frame_s], dtype=torch.float64), input_stride=self.frames_per_step,
            seek_num_frames=torch.tensor([num_frames]), time_precision=self.frames_per_step * self.frame_s,
            time_precision_features=self.frame_s, return_token_timestamps=False, decoder_input_ids=torch.zeros((1, 0)),
        )  # fmt: skip
        rows = [(float(part["start"]), float(part["end"]), "", tuple(part["tokens"].tolist())) for part in parts]
        return [Segment(*row) for row in rows], int(step)

    def count_settled(self, ids: Sequence[int]) -> int:
        """Count the tokens of an unfinished window that will be kept: those before the last pair's second time."""
        return max((n for n in range(1, len(ids)) if ids[n - 1] >= self.first_id <= ids[n]), default=0)

    def stops_at_once(self, ids: Sequence[int], num_frames: int) -> bool:
        """Return True for a window that hardly has a word, as speech has behind a text of another kind."""
        words = [token_id for token_id in ids if token_id < self.first_id]
        is_open = len(ids) - len(words) < 2
        return not words or (is_open and len(words) * _MIN_PACE_S < num_frames * self.frame_s)

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
