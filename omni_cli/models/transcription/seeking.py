"""The way through a sound of a model that writes times: which window is next, what is before it and what is kept."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.models.whisper.generation_whisper import WhisperGenerationMixin

from omni_cli.models.transcription.long_form import Thresholds, TimeTokens
from omni_cli.models.transcription.spectrogram import Spectrogram
from omni_cli.requests.contents import Segment, TranscriptionOptions

# After a window that was heard at a higher temperature, the next one begins without earlier text.
_MAX_CONDITION_TEMPERATURE = 0.5
# Tokens of room for a window behind a long prompt and earlier text.
_MIN_ROOM = 64


@dataclass
class Seeker:
    """One sound, window after window; `heard` are the tokens of the parts that are kept, `ends_s` where they end.

    `key` names the current window, at any temperature, for vLLM's cache of encoded sounds.
    """

    sound: Spectrogram
    clock: TimeTokens
    thresholds: Thresholds
    asked: TranscriptionOptions
    prompt_ids: list[int]
    begin: int = 0
    attempt: int = 0
    key: str = field(default_factory=lambda: uuid.uuid4().hex)
    heard: list[tuple[int, ...]] = field(default_factory=list)
    ends_s: list[float] = field(default_factory=list)
    _without_prompt: bool = False
    _is_sure: bool = True

    @property
    def num_frames(self) -> int:
        """Frames of the sound in the current window; none after the last one."""
        return max(0, min(self.clock.size, self.sound.num_frames - self.begin))

    def get_samples(self) -> tuple[int, int]:
        """Return the first sample of the current window, and the one behind its last."""
        return self.begin * self.sound.hop, (self.begin + self.num_frames) * self.sound.hop

    @property
    def temperature(self) -> float:
        return self.thresholds.temperatures[self.attempt]

    def name_sound(self, prompt: dict[str, Any]) -> dict[str, Any]:
        """Name the window in vLLM's prompt: a hash of its samples would not tell of the whole sound."""
        prompt["encoder_prompt"]["multi_modal_uuids"] = {"audio": [self.key]}
        return prompt

    def before(self) -> list[int]:
        """Return the tokens before the one that begins the current window's transcript."""
        limit = self.clock.max_tokens // 2 - 1
        ids, has_all = self.prompt_ids[-limit:], self.asked.prompt_condition_type == "all-segments"
        if self.asked.condition_on_prev_tokens and self._is_sure:
            heard = self.clock.tokens_before(self.heard, limit)
            room = max(0, 2 * limit - _MIN_ROOM - len(ids))
            ids = ids + heard[max(0, len(heard) - room) :] if has_all else (ids + heard)[-limit:]
        elif self.begin and not has_all:
            return []
        return [self.clock.before_id, *ids] if ids and not self._without_prompt else []

    def take(
        self, token_ids: Sequence[int], avg_logprob: float | None, no_speech: float | None
    ) -> list[Segment] | None:
        """Return what is kept of the current window's tokens, and go on; None if it is to be heard again."""
        ids = [token_id for token_id in token_ids if token_id not in self.clock.end_ids]
        if self.before() and self.clock.stops_at_once(ids, self.num_frames):
            self._without_prompt = True
            return None
        get_ratio, ids_of_all = WhisperGenerationMixin._retrieve_compression_ratio, torch.tensor(token_ids)
        ratio = get_ratio(ids_of_all, self.clock.vocab_size) if token_ids else 0.0
        verdict = self.thresholds.judge(ratio, avg_logprob, no_speech)
        if verdict == "again" and self.attempt + 1 < len(self.thresholds.temperatures):
            self.attempt += 1
            return None
        parts, step = self.clock.read_window(ids, self.begin, self.num_frames) if ids else ([], self.num_frames)
        if verdict == "skip":
            parts, step = [], self.num_frames
        self._is_sure = self.temperature < _MAX_CONDITION_TEMPERATURE
        self.heard += [part.token_ids for part in parts]
        self.begin += step or self.num_frames
        self.attempt, self._without_prompt, self.key = 0, False, uuid.uuid4().hex
        return parts
