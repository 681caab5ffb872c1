"""A speech recognition model on vLLM, whose interface for them (`SupportsTranscription`) makes prompts and pieces."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.model_executor.models.interfaces import StreamingTranscriptionPostProcessor
from vllm.multimodal.audio import split_audio
from vllm.outputs import RequestOutput
from vllm.renderers.inputs.preprocess import parse_model_prompt
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

from omni_cli.backends.vllm.stage import ActiveRequest
from omni_cli.backends.vllm.text_stage import TextStage
from omni_cli.core.errors import InputError
from omni_cli.models.transcription.family import OWN_MODELS
from omni_cli.models.transcription.prompts import SpeechPrompts, encode_apart, read_own
from omni_cli.requests.contents import Media, Segment, Transcript, TranscriptionOptions
from omni_cli.requests.encoding import resample
from omni_cli.requests.outputs import GenerateRequest, TextOutput
from omni_cli.stage.messages import Report, RequestDone, TextChunk
from omni_cli.stage.protocol import StageSpec

TIMESTAMPS = "timestamps"
"""The key of `SamplingParams.extra_args` that turns the rules on; its value is true for a text with timestamps."""


class WhisperRules(AdapterLogitsProcessor):
    """Applies transformers' own processors to the requests that transcribe, in the order in which `generate` does."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        super().__init__(vllm_config, device, is_pin_memory)
        settings = read_own(vllm_config.model_config.model)
        rules = LogitsProcessorList()
        if settings.begin_suppress_tokens is not None:
            rules.append(SuppressTokensAtBeginLogitsProcessor(settings.begin_suppress_tokens, 0, str(device)))
        if settings.suppress_tokens:
            rules.append(SuppressTokensLogitsProcessor(settings.suppress_tokens, str(device)))
        self._rules = {False: rules}
        if getattr(settings, "no_timestamps_token_id", None) is not None:
            self._rules[True] = LogitsProcessorList([*rules, WhisperTimeStampLogitsProcessor(settings, 0)])

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(
        self, params: SamplingParams
    ) -> Callable[[Sequence[int], torch.Tensor], torch.Tensor] | None:
        timestamps = (params.extra_args or {}).get(TIMESTAMPS)
        if timestamps is None:
            return None
        rules = self._rules[timestamps]

        def apply(token_ids: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
            ids = torch.tensor([token_ids], dtype=torch.long, device=logits.device)
            return rules(ids, logits[None])[0]

        return apply


# A shorter sound has not one frame of a spectrogram.
_MIN_SAMPLES = 400
_TIMESTAMP = re.compile(r"<\|\d+\.\d\d\|>")
_BEGUN_TIMESTAMP = re.compile(r"<(\|[\d.]*\|?)?$")
_LANGUAGE = re.compile(r"\s*language (.+?)<asr_text>")


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
    unsure: str = ""
    done: RequestDone | None = None

    def without_timestamps(self, text: str, *, is_last: bool) -> str:
        """Return more text without timestamps. What may be the beginning of one waits: stop strings split them."""
        text = _TIMESTAMP.sub("", self.unsure + text)
        begun = None if is_last else _BEGUN_TIMESTAMP.search(text)
        self.unsure = "" if begun is None else begun.group()
        return text.removesuffix(self.unsure)


@dataclass
class Transcription:
    """A request with the pieces of its sound."""

    request: GenerateRequest
    pieces: list[SoundWindow]
    language: str | None
    added_s: float
    text: str = ""
    num_sent: int = 0


class TranscriptionStage(TextStage):
    """Transcribes sounds of any length: all pieces run at once, and their texts are joined in order."""

    def __init__(self, spec: StageSpec, emit: Callable[[Report], None]) -> None:
        super().__init__(spec, emit)
        self._config = self.engine.vllm_config.model_config
        self._speech = SpeechPrompts.of(self._config)
        self._model, self._hearing = self._speech.model, self._speech.hearing
        # Whisper's tokens of a prompt name the language, the task and whether times are wanted.
        self._has_marks: bool = self._model.supports_explicit_language_detection
        if self._has_marks:
            # A prompt of text that came before begins with another token than vLLM's start, which it would add.
            self.engine.renderer.get_mm_processor().skip_decoder_start_token = True
        self._own = read_own(self._config.model)
        self._transcriptions: dict[str, Transcription] = {}

    @property
    def _chats(self) -> bool:
        role = self.spec.family.role(self.spec.stage.name)
        return role is not None and role.chats

    def engine_args(self) -> dict[str, object]:
        arguments = {**super().engine_args(), **({} if self._chats else {"logits_processors": [WhisperRules]})}
        if own := OWN_MODELS.get(self.spec.architecture):
            arguments["hf_overrides"] = {"architectures": [own]}
        return arguments

    def warm_up_request(self) -> GenerateRequest | None:
        if self._chats:
            return super().warm_up_request()
        return GenerateRequest(
            "",
            media=Media(audio=((np.zeros(16_000, np.float32), 16_000),)),
            transcription=TranscriptionOptions(language="en"),
        )

    def add(self, request: GenerateRequest) -> None:
        if self._chats and not request.transcription.asked:
            super().add(request)
            return
        language = self._check(request)
        ((samples, sample_rate),) = request.media.audio
        rate = int(self._hearing.sample_rate)
        samples = resample(samples, sample_rate, rate)
        if len(samples) < _MIN_SAMPLES:
            raise InputError(f"the sound is empty: it has {len(samples)} samples at {rate} Hz")
        parts = self._cut(samples, rate)
        starts_s = np.cumsum([0, *(len(part) for part in parts)]) / rate
        new_reader = self._model.get_streaming_post_processor_cls()
        pieces = [
            SoundWindow(float(start_s), part, new_reader()) for start_s, part in zip(starts_s, parts, strict=False)
        ]
        transcription = Transcription(request, pieces, language, time.perf_counter())
        self._transcriptions[request.request_id] = transcription
        try:
            if language is None and self._model.supports_explicit_language_detection:
                self._admit(transcription, None)
            else:
                self._admit_all(transcription)
        except InputError:
            self.abort(request.request_id)
            raise

    def _cut(self, samples: np.ndarray, rate: int) -> list[np.ndarray]:
        """Cut a sound in pauses into parts that fit the model's window; some models take several windows at once."""
        hearing = self._hearing
        if not hearing.allow_audio_chunking:
            return [samples]
        parts: list[np.ndarray] = split_audio(
            samples,
            rate,
            hearing.max_audio_clip_s,
            hearing.overlap_chunk_second,
            hearing.min_energy_split_window_size,
        )
        return parts

    @property
    def _is_multilingual(self) -> bool:
        return bool(getattr(self._own, "is_multilingual", True))

    def _check(self, request: GenerateRequest) -> str | None:
        """Return the language; raise `InputError` for a request that the model cannot run."""
        text, media, asked = request.text, request.media, request.transcription
        if request.messages or text.prompt_token_ids is not None or text.raw or text.reply is not None:
            raise InputError("this model transcribes speech: it does not chat")
        if len(media.audio) != 1 or media.images or media.videos:
            raise InputError(f"this model transcribes one sound per request, not {len(media.audio)}")
        if asked.timestamps and not self._has_marks:
            raise InputError("this model tells no times", hint="drop `timestamps`")
        if not self._is_multilingual and (asked.language not in (None, "en") or asked.task == "translate"):
            raise InputError("this model hears English only: it takes no other `language` and does not translate")
        return self._speech.choose_language(request) if self._is_multilingual else "en"

    def _admit_all(self, transcription: Transcription) -> None:
        for number in range(len(transcription.pieces)):
            self._admit(transcription, number)

    def _admit(self, transcription: Transcription, number: int | None) -> None:
        """Run a piece, or without its number the detection of the language."""
        request = replace(transcription.request, request_id=_piece_id(transcription, number))
        context = {"transcription": transcription, "piece": number}
        self.admit(ActiveRequest(request, time.perf_counter(), context=context))

    def render(self, active: ActiveRequest) -> tuple[dict[str, Any], SamplingParams]:
        if "transcription" not in active.context:
            return super().render(active)
        transcription: Transcription = active.context["transcription"]
        number, request = active.context["piece"], transcription.request
        tokenizer = self.engine.renderer.get_tokenizer()
        if number is None:
            prompt = self._model.get_language_detection_prompt(transcription.pieces[0].samples, self._hearing)
            allowed = self._model.get_language_token_ids(tokenizer)
            params = SamplingParams(temperature=0.0, max_tokens=1, allowed_token_ids=allowed)
            return parse_model_prompt(self._config, prompt), params
        prompt = self._speech.make(request, transcription.language, transcription.pieces[number].samples)
        greedy = {"temperature": 0.0} if self._chats and "temperature" not in request.sampling else {}
        if not self._has_marks:
            return prompt, self.sampling_params(request, **greedy)
        prompt["decoder_prompt"]["prompt"] = self._decoder_prompt(prompt["decoder_prompt"]["prompt"], request)
        return prompt, self.sampling_params(request, extra_args={TIMESTAMPS: request.transcription.timestamps})

    def _decoder_prompt(self, text: str, request: GenerateRequest) -> str:
        """Return vLLM's prompt as transformers has it."""
        text = text.replace("<|prev|>", "<|startofprev|> ", 1)
        before, start, rest = text.rpartition("<|startoftranscript|>")
        if not self._is_multilingual:
            rest = "<|notimestamps|>"
        return before + start + (rest.removesuffix("<|notimestamps|>") if request.transcription.timestamps else rest)

    def output(self, active: ActiveRequest, output: RequestOutput) -> list[Report]:
        if "transcription" not in active.context:
            return super().output(active, output)
        transcription: Transcription = active.context["transcription"]
        number = active.context["piece"]
        if number is None:
            tokenizer = self.engine.renderer.get_tokenizer()
            token_ids = output.outputs[0].token_ids
            transcription.language = self._model.parse_language_detection_output(token_ids, tokenizer)
            self._admit_all(transcription)
            return []
        piece = transcription.pieces[number]
        for report in super().output(active, output):
            if isinstance(report, TextChunk):
                piece.chunks.append(report)
            elif isinstance(report, RequestDone):
                piece.done = report
        return self._reports(transcription)

    def _reports(self, transcription: Transcription) -> list[Report]:
        """Return the text that nothing is missing before, and the end of a request whose pieces all have ended."""
        request_id = transcription.request.request_id
        reports: list[Report] = []
        for piece in transcription.pieces[transcription.num_sent :]:
            for chunk in piece.chunks:
                more = piece.without_timestamps(piece.reader.process_delta(chunk.text, False), is_last=False)
                text = self._join_text(transcription, piece, more)
                if text or chunk.logprobs:
                    reports.append(msgspec.structs.replace(chunk, request_id=request_id, text=text))
            piece.chunks.clear()
            if piece.done is None:
                return reports
            rest = piece.without_timestamps(piece.reader.process_delta("", True), is_last=True)
            rest = self._join_text(transcription, piece, rest)
            if rest:
                counts = (piece.done.trace["num_input_tokens"], piece.done.trace["num_output_tokens"])
                reports.append(TextChunk(request_id, rest, *counts))
            transcription.num_sent += 1
        del self._transcriptions[request_id]
        return [*reports, self._finish_whole(transcription)]

    def _join_text(self, transcription: Transcription, piece: SoundWindow, text: str) -> str:
        """Return more text of a piece as it goes on in the whole text."""
        if not piece.has_text:
            text = text.lstrip()
            piece.has_text = bool(text)
            has_spaces = transcription.language not in self._model.no_space_languages
            if text and transcription.text and has_spaces:
                text = f" {text}"
        transcription.text += text
        return text

    def _finish_whole(self, transcription: Transcription) -> RequestDone:
        done = [piece.done for piece in transcription.pieces if piece.done is not None]
        texts = [each.text for each in done if each.text is not None]
        traces = [each.trace for each in done]
        first_s = [each["ttft_s"] for each in traces if each["ttft_s"] is not None]
        token_ids = tuple(token_id for text in texts for token_id in text.token_ids)
        is_cut = any(text.finish_reason == "length" for text in texts)
        duration_s = sum(len(piece.samples) for piece in transcription.pieces) / self._hearing.sample_rate
        segments = tuple(
            segment
            for piece, text in zip(transcription.pieces, texts, strict=True)
            for segment in self._segments(transcription, piece, text)
        )
        trace = {
            **traces[0],
            "latency_s": time.perf_counter() - transcription.added_s,
            "ttft_s": min(first_s, default=None),
            "num_input_tokens": sum(each["num_input_tokens"] for each in traces),
            "num_output_tokens": len(token_ids),
            "finish_reason": "length" if is_cut else "stop",
            "output_token_ids": token_ids,
            "token_times_s": sorted(time_s for each in traces for time_s in each["token_times_s"]),
            "output_logprobs": [item for each in traces for item in each["output_logprobs"] or ()] or None,
        }
        language = transcription.language or self._get_language(texts[0].text)
        transcript = Transcript(language, duration_s, segments)
        text = TextOutput(transcription.text, token_ids, trace["finish_reason"], transcript=transcript)
        return RequestDone(transcription.request.request_id, trace, text=text)

    def _get_language(self, text: str) -> str | None:
        """Return the code of the language that a model names before its transcript."""
        named = _LANGUAGE.match(text)
        codes = {name: code for code, name in self._model.supported_languages.items()}
        return None if named is None else codes.get(named[1])

    def _segments(self, transcription: Transcription, piece: SoundWindow, text: TextOutput) -> Iterator[Segment]:
        """Yield the parts of a piece's text between its timestamps; without timestamps it is one part."""
        has_times = transcription.request.transcription.timestamps
        first_id = self._own.no_timestamps_token_id + 1 if has_times else math.inf
        positions = self._config.hf_config.max_source_positions if has_times else 0
        second = math.ceil(positions / (self._hearing.max_audio_clip_s or 1))
        end_s = piece.start_s + len(piece.samples) / self._hearing.sample_rate
        start_s, ids = piece.start_s, list[int]()
        for token_id in (*text.token_ids, None):
            if token_id is not None and token_id < first_id:
                ids.append(token_id)
                continue
            # The window may be longer than the piece, and so may be a last part.
            time_s = end_s if token_id is None else min(piece.start_s + (token_id - first_id) / second, end_s)
            words = self.engine.renderer.get_tokenizer().decode(ids, skip_special_tokens=True)
            words = self._model.post_process_output(words).strip()
            if words:
                yield Segment(round(start_s, 3), round(time_s, 3), words, tuple(ids))
            start_s, ids = time_s, []

    def on_prepared(self, active: ActiveRequest, engine_input: Any) -> None:
        super().on_prepared(active, engine_input)
        encode_apart(engine_input)

    def get_request_id(self, active: ActiveRequest) -> str:
        transcription: Transcription | None = active.context.get("transcription")
        return active.request.request_id if transcription is None else transcription.request.request_id

    def tokenize_params(self, request: GenerateRequest) -> Any:
        # As vLLM's own server: its prompts are no chat template's.
        return super().tokenize_params(request) if self._chats and not request.transcription.asked else None

    def abort(self, request_id: str) -> None:
        transcription = self._transcriptions.pop(request_id, None)
        if transcription is None:
            super().abort(request_id)
        else:
            for number in (None, *range(len(transcription.pieces))):
                super().abort(_piece_id(transcription, number))


def _piece_id(transcription: Transcription, number: int | None) -> str:
    return f"{transcription.request.request_id}/{'language' if number is None else number}"
