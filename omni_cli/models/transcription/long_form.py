"""Whisper's way through a long sound: where a window's text ends and the next begins, as in transformers' long form.

A model that writes times goes on from its last one. Times are counted in frames of the spectrogram.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any, Literal

import numpy as np
import torch
from torch.nn import functional
from transformers import GenerationConfig, WhisperForConditionalGeneration
from transformers.generation.utils import GenerateEncoderDecoderOutput
from transformers.models.whisper.generation_whisper import WhisperGenerationMixin

from omni_cli.requests.contents import Segment, TranscriptionOptions, Word
from omni_cli.requests.outputs import GenerateRequest

Verdict = Literal["keep", "again", "skip"]
# A token in so many seconds is less than any speech has.
_MIN_PACE_S = 5.0
# Frames that are computed at once to find the loudest.
_PIECE = 6000
# After a window that was heard at a higher temperature, the next one begins without earlier text.
_MAX_CONDITION_TEMPERATURE = 0.5
# Tokens of room for a window behind a long prompt and earlier text.
_MIN_ROOM = 64


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


class Spectrogram:
    """The log-mel frames of samples float32 (num_samples,); values depend on the loudest of the whole sound.

    A sound that is shorter than the window of `extractor` is filled up with silence, which counts for no frames.
    """

    def __init__(self, samples: np.ndarray, extractor: Any) -> None:
        self.num_frames: int = max(1, len(samples) // extractor.hop_length)
        padding = max(0, extractor.n_samples - len(samples))
        self._samples = np.pad(samples, (0, padding)) if padding else samples
        self._num_all = len(self._samples) // extractor.hop_length
        self._extractor = extractor
        self.hop: int = extractor.hop_length
        self._filters = torch.from_numpy(extractor.mel_filters).to(torch.float32).T
        self._window = torch.hann_window(extractor.n_fft)
        pieces = range(0, self._num_all, _PIECE)
        self._loudest = max(float(self._log_mel(begin, begin + _PIECE).max()) for begin in pieces)

    def window(self, begin: int, size: int) -> torch.Tensor:
        """Return frames (num_mels, size) from `begin` on; as in transformers, those after the sound's end are 0."""
        frames = torch.clamp(self._log_mel(begin, begin + size), min=self._loudest - 8.0)
        return functional.pad((frames + 4.0) / 4.0, (0, size - frames.shape[1]))

    def _log_mel(self, begin: int, end: int) -> torch.Tensor:
        end, half, hop = min(end, self._num_all), self._extractor.n_fft // 2, self._extractor.hop_length
        start, stop, length = begin * hop - half, (end - 1) * hop + half, len(self._samples)
        piece = torch.from_numpy(np.array(self._samples[max(start, 0) : stop]))[None]
        # The ends of the sound are mirrored.
        piece = functional.pad(piece, (max(-start, 0), max(stop - length, 0)), mode="reflect")
        spectrum = torch.stft(
            piece[0], self._extractor.n_fft, hop, window=self._window, center=False, return_complex=True
        )
        return torch.clamp(self._filters @ (spectrum.abs() ** 2).contiguous(), min=1e-10).log10()


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


class TimedModel:
    """Whisper, by its sizes and its generation config; `config` and `processor` are vLLM's."""

    def __init__(self, config: Any, own: GenerationConfig, processor: Any, tokenizer: Any) -> None:
        self.extractor = processor.info.get_feature_extractor()
        self.has_words = bool(getattr(own, "alignment_heads", None))
        self._config, self._tokenizer = config, tokenizer
        self._thresholds = Thresholds.of(own)
        self._clock = TimeTokens.of(own, config.model_config.hf_config, self.extractor, tokenizer)

    @cached_property
    def _attentive(self) -> Any:
        """transformers' model of the same checkpoint, because vLLM's keeps no attention."""
        config, device = self._config.model_config, self._config.device_config.device
        # The other implementations of attention return no weights.
        options = {"dtype": config.dtype, "attn_implementation": "eager"}
        return WhisperForConditionalGeneration.from_pretrained(config.model, **options).to(device).eval()

    def new_seeker(self, request: GenerateRequest, samples: np.ndarray, temperature: float) -> Seeker:
        """Begin a sound; `temperature` other than 0 is that of all windows."""
        prompt_ids: list[int] = []
        if words := (request.prompt or "").strip():
            prompt_ids = self._tokenizer.encode(f" {words}", add_special_tokens=False)
        thresholds = replace(self._thresholds, temperatures=(temperature,)) if temperature else self._thresholds
        sound = Spectrogram(samples, self.extractor)
        return Seeker(sound, self._clock, thresholds, request.transcription, prompt_ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the words of tokens, without times."""
        words = [token_id for token_id in token_ids if token_id < self._clock.first_id]
        text: str = self._tokenizer.decode(words, skip_special_tokens=True)
        return text

    def make_segments(self, parts: Sequence[Segment], end_s: float, about: Segment) -> Iterator[Segment]:
        """Yield the parts of a window that have words; what is known of it as a whole is that of `about`."""
        words = self.decode([token_id for part in parts for token_id in part.token_ids]).encode()
        about = replace(about, compression_ratio=len(words) / len(zlib.compress(words)) if words else None)
        for part in parts:
            text = self.decode(part.token_ids)
            if text.strip():
                # The last window is longer than the sound, and so may be its last part.
                first_s, last_s = (round(min(time_s, end_s), 3) for time_s in (part.start_s, part.end_s))
                yield replace(about, start_s=first_s, end_s=last_s, text=text, token_ids=part.token_ids)

    @torch.inference_mode()
    def find_words(
        self, seeker: Seeker, begin: int, parts: Sequence[Segment], prompt_ids: Sequence[int], token_ids: Sequence[int]
    ) -> None:
        """Note where the tokens end of the parts of a window that begins at a frame.

        `token_ids` are what the model wrote after `prompt_ids`, timestamps and the end included. The last one, which no
        step follows, ends where it begins.
        """
        model = self._attentive
        ids = torch.tensor([[*prompt_ids, *token_ids[:-1]]], device=model.device)
        frames = seeker.sound.window(begin, self._clock.size)
        features = frames[None].to(model.device, model.dtype)
        output = model(features, decoder_input_ids=ids, output_attentions=True, use_cache=False)
        times = model._extract_token_timestamps(
            GenerateEncoderDecoderOutput(sequences=ids, cross_attentions=(output.cross_attentions,)),
            model.generation_config.alignment_heads,
            num_frames=np.array([seeker.sound.num_frames - begin]),
            num_input_ids=len(prompt_ids),
        )
        num_kept, start_s = sum(len(part.token_ids) for part in parts), begin * self._clock.frame_s
        seeker.ends_s += [start_s + end_s for end_s in times[0][len(prompt_ids) :][:num_kept].tolist()]

    def read_words(self, seeker: Seeker, language: str | None) -> Iterator[Word]:
        """Yield the words of a sound whose windows have ended."""
        mark, ids, ends_s = self._tokenizer.convert_tokens_to_ids(f"<|{language}|>"), seeker.heard, seeker.ends_s
        if mark in self._tokenizer.all_special_ids:  # it would be a word of a tokenizer that marks it not as such
            ids, ends_s = [(mark,), *ids], [0.0, *ends_s]
        made = {"tokens": torch.tensor([[*chain(*ids)]]), "token_timestamps": torch.tensor([ends_s])}
        step_s = self._clock.frames_per_step * self._clock.frame_s
        form = {"return_timestamps": "word", "return_language": None, "time_precision": step_s}
        for word in self._tokenizer._decode_asr([made], **form)[1]["chunks"]:
            begin_s, end_s = word["timestamp"]
            yield Word(begin_s, end_s, word["text"].strip())
