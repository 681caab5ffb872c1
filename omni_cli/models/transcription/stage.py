"""A speech recognition model on vLLM, whose interface for them (`SupportsTranscription`) makes prompts and pieces."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from transformers import GenerationConfig
from vllm import SamplingParams
from vllm.config.speech_to_text import SpeechToTextParams
from vllm.model_executor.model_loader import get_model_cls
from vllm.multimodal.audio import split_audio
from vllm.outputs import RequestOutput
from vllm.renderers.inputs.preprocess import parse_model_prompt
from vllm.tokenizers.mistral import MistralTokenizer

from omni_cli.backends.vllm.stage import ActiveRequest
from omni_cli.backends.vllm.text_stage import TextStage
from omni_cli.core.errors import InputError
from omni_cli.models.transcription.family import OWN_MODELS
from omni_cli.models.transcription.long_form import HeardPart, Thresholds, TimeTokens, compression_ratio
from omni_cli.models.transcription.seeking import Seeker, WindowTraits
from omni_cli.models.transcription.spectrogram import Spectrogram
from omni_cli.models.transcription.whisper_rules import CONFIDENCES, TIMESTAMPS, WINDOW, Confidence, WhisperRules
from omni_cli.models.transcription.windows import SoundWindow, Transcription
from omni_cli.requests.contents import Media, Segment, Transcript, TranscriptionOptions, Word
from omni_cli.requests.encoding import resample
from omni_cli.requests.outputs import GenerateRequest, TextOutput
from omni_cli.stage.messages import Report, RequestDone, TextChunk
from omni_cli.stage.protocol import StageSpec

if TYPE_CHECKING:
    from omni_cli.models.transcription.word_times import WordAligner

# A shorter sound has not one frame of a spectrogram.
_MIN_SAMPLES = 400
_LANGUAGE = re.compile(r"\s*language (.+?)<asr_text>")


class TranscriptionStage(TextStage):
    """Transcribes sounds of any length.

    A model that writes times goes on from the last one, window after window. Otherwise all pieces run at once, and
    their texts are joined in order.
    """

    def __init__(self, spec: StageSpec, emit: Callable[[Report], None]) -> None:
        super().__init__(spec, emit)
        self._config = self.engine.vllm_config.model_config
        self._model: Any = get_model_cls(self._config)
        self._hearing = self._model.get_speech_to_text_config(self._config, "transcribe")
        # Whisper's tokens of a prompt name the language, the task and whether times are wanted.
        self._has_marks: bool = self._config.is_encoder_decoder
        if self._has_marks:
            # A prompt of text that came before begins with another token than vLLM's start, which it would add.
            self.engine.renderer.get_mm_processor().skip_decoder_start_token = True
        # Mistral's prompt of a transcript has the sound and its language, and nothing else.
        self._names_language_only = isinstance(self.engine.renderer.get_tokenizer(), MistralTokenizer)
        self._own = GenerationConfig.from_pretrained(self._config.model)
        self._clock, self._thresholds = self._get_clock(), Thresholds.of(self._own)
        self._aligner: WordAligner | None = None
        self._transcriptions: dict[str, Transcription] = {}

    def _get_clock(self) -> TimeTokens | None:
        """Return the times that the model writes; None for a model that writes none."""
        no_times: int | None = getattr(self._own, "no_timestamps_token_id", None)
        if not self._has_marks or no_times is None:
            return None
        self._extractor = self.engine.renderer.get_mm_processor().info.get_feature_extractor()
        config, tokenizer = self._config.hf_config, self.engine.renderer.get_tokenizer()
        ends = self._own.eos_token_id
        frames_per_step = self._extractor.nb_max_frames // config.max_source_positions
        self._traits = WindowTraits(
            self._extractor.nb_max_frames,
            config.max_target_positions,
            config.vocab_size,
            frozenset([ends] if isinstance(ends, int) else ends),
            tokenizer.convert_tokens_to_ids("<|startofprev|>"),
        )
        return TimeTokens(no_times + 1, frames_per_step, self._extractor.hop_length / self._extractor.sampling_rate)

    def engine_args(self) -> dict[str, object]:
        arguments = {**super().engine_args(), "logits_processors": [WhisperRules]}
        if own := OWN_MODELS.get(self.spec.architecture):
            arguments["hf_overrides"] = {"architectures": [own]}
        return arguments

    def warm_up_request(self) -> GenerateRequest | None:
        return GenerateRequest(
            "",
            media=Media(audio=((np.zeros(16_000, np.float32), 16_000),)),
            transcription=TranscriptionOptions(language="en"),
        )

    def add(self, request: GenerateRequest) -> None:
        self._check(request)
        ((samples, sample_rate),) = request.media.audio
        rate = int(self._hearing.sample_rate)
        samples = resample(samples, sample_rate, rate)
        if len(samples) < _MIN_SAMPLES:
            raise InputError(f"the sound is empty: it has {len(samples)} samples at {rate} Hz")
        language = request.transcription.language if self._is_multilingual else "en"
        transcription = Transcription(request, [], language, time.perf_counter(), samples)
        if self._clock is None:
            for start, part in self._cut(samples, rate):
                transcription.pieces.append(self._window(start / rate, part))
        else:
            transcription.seeker = self._seeker(request, samples, self._clock)
            self._add_window(transcription, transcription.seeker)
        self._transcriptions[request.request_id] = transcription
        try:
            if language is None and self._model.supports_explicit_language_detection:
                self._admit(transcription, None)
            else:
                self._admit_all(transcription)
        except InputError:
            self.abort(request.request_id)
            raise

    def _seeker(self, request: GenerateRequest, samples: np.ndarray, clock: TimeTokens) -> Seeker:
        prompt_ids: list[int] = []
        if words := (request.prompt or "").strip():
            prompt_ids = self.engine.renderer.get_tokenizer().encode(f" {words}", add_special_tokens=False)
        asked = request.sampling.get("temperature", self.spec.ar.sampling.temperature)
        thresholds = replace(self._thresholds, temperatures=(float(asked),)) if asked else self._thresholds
        sound = Spectrogram(samples, self._extractor)
        return Seeker(sound, clock, self._traits, thresholds, request.transcription, prompt_ids)

    def _window(self, start_s: float, samples: np.ndarray) -> SoundWindow:
        return SoundWindow(start_s, samples, self._model.get_streaming_post_processor_cls()())

    def _add_window(self, transcription: Transcription, seeker: Seeker) -> None:
        """Add the window that a sound has come to."""
        hop = self._extractor.hop_length
        part = transcription.samples[seeker.begin * hop : (seeker.begin + seeker.num_frames) * hop]
        transcription.pieces.append(self._window(seeker.begin * hop / self._extractor.sampling_rate, part))

    def _cut(self, samples: np.ndarray, rate: int) -> list[tuple[int, np.ndarray]]:
        """Cut a sound in pauses into parts that fit the model's window; some models take several windows at once."""
        hearing = self._hearing
        if not hearing.allow_audio_chunking:
            return [(0, samples)]
        parts: list[np.ndarray] = split_audio(
            samples,
            rate,
            hearing.max_audio_clip_s,
            hearing.overlap_chunk_second,
            hearing.min_energy_split_window_size,
        )
        return list(zip(np.cumsum([0, *map(len, parts[:-1])]).tolist(), parts, strict=True))

    @property
    def _is_multilingual(self) -> bool:
        return bool(getattr(self._own, "is_multilingual", True))

    def _check(self, request: GenerateRequest) -> None:
        """Raise `InputError` for a request that the model cannot run."""
        text, media, asked = request.text, request.media, request.transcription
        if request.messages or text.prompt_token_ids is not None or text.raw or text.reply is not None:
            raise InputError("this model transcribes speech: it does not chat")
        if len(media.audio) != 1 or media.images or media.videos:
            raise InputError(f"this model transcribes one sound per request, not {len(media.audio)}")
        if asked.timestamps and not self._has_marks:
            raise InputError("this model tells no times", hint="drop `timestamps`")
        if asked.word_timestamps and not (self._clock and getattr(self._own, "alignment_heads", None)):
            lacks = "its generation_config.json has no `alignment_heads`" if self._clock else "it writes no times"
            raise InputError(f"this model tells no times of words: {lacks}", hint="drop `word_timestamps`")
        if self._names_language_only and request.prompt:
            raise InputError("this model takes no words before the transcript", hint="drop `prompt`")
        if self._names_language_only and asked.task == "translate":
            raise InputError("this model does not translate", hint="drop `task`")
        if not self._is_multilingual and (asked.language not in (None, "en") or asked.task == "translate"):
            raise InputError("this model hears English only: it takes no other `language` and does not translate")
        if asked.language is not None and asked.language not in self._model.supported_languages:
            known = ", ".join(self._model.supported_languages)
            raise InputError(f"unknown `language`: {asked.language}", hint=f"choose from: {known}")

    def _admit_all(self, transcription: Transcription) -> None:
        for number in range(len(transcription.pieces)):
            self._admit(transcription, number)

    def _admit(self, transcription: Transcription, number: int | None) -> None:
        """Run a piece, or without its number the detection of the language."""
        # A window that is heard again needs another name while its first one leaves the engine.
        transcription.num_admitted += 1
        request_id = f"{transcription.request.request_id}/{transcription.num_admitted}"
        request = replace(transcription.request, request_id=request_id)
        context = {"transcription": transcription, "piece": number}
        self.admit(ActiveRequest(request, time.perf_counter(), context=context))

    def render(self, active: ActiveRequest) -> tuple[dict[str, Any], SamplingParams]:
        transcription: Transcription = active.context["transcription"]
        number, request = active.context["piece"], transcription.request
        tokenizer = self.engine.renderer.get_tokenizer()
        if number is None:
            prompt = self._model.get_language_detection_prompt(transcription.pieces[0].samples, self._hearing)
            allowed = self._model.get_language_token_ids(tokenizer)
            params = SamplingParams(temperature=0.0, max_tokens=1, allowed_token_ids=allowed)
            return self._with_key(parse_model_prompt(self._config, prompt), transcription), params
        prompt = self._model.get_generation_prompt(
            SpeechToTextParams(
                audio=transcription.pieces[number].samples,
                stt_config=self._hearing,
                model_config=self._config,
                language=transcription.language,
                task_type=request.transcription.task,
                to_language="en" if request.transcription.task == "translate" else None,
                request_prompt="" if transcription.seeker else request.prompt or "",
            )
        )
        prompt = parse_model_prompt(self._config, prompt)
        if not self._has_marks:
            return prompt, self.sampling_params(request)
        text = prompt["decoder_prompt"]["prompt"].replace("<|prev|>", "<|startofprev|> ", 1)
        seeker, (before, start, rest) = transcription.seeker, text.rpartition("<|startoftranscript|>")
        rest = rest if self._is_multilingual else "<|notimestamps|>"
        if seeker is None:
            prompt["decoder_prompt"]["prompt"] = before + start + rest
            return prompt, self.sampling_params(request, extra_args={TIMESTAMPS: False})
        marks = tokenizer.encode(start + rest.removesuffix("<|notimestamps|>"), add_special_tokens=False)
        active.context["prompt_ids"] = [*seeker.before(), *marks]
        prompt["decoder_prompt"] = {"prompt_token_ids": active.context["prompt_ids"]}
        CONFIDENCES[active.request.request_id] = Confidence()
        notes = {TIMESTAMPS: True, WINDOW: active.request.request_id}
        params = self.sampling_params(request, temperature=seeker.temperature, extra_args=notes)
        return self._with_key(prompt, transcription), params

    @staticmethod
    def _with_key(prompt: dict[str, Any], transcription: Transcription) -> dict[str, Any]:
        """Name the sound of a prompt: vLLM would hash the window, but frames depend on the whole sound."""
        if transcription.seeker is not None:
            prompt["encoder_prompt"]["multi_modal_uuids"] = {"audio": [transcription.seeker.key]}
        return prompt

    def on_prepared(self, active: ActiveRequest, engine_input: Any) -> None:
        """Put in the frames of the whole sound for those that vLLM made of a window alone."""
        seeker: Seeker | None = active.context["transcription"].seeker
        if seeker is not None:
            (item,) = engine_input["decoder_prompt"]["mm_kwargs"]["audio"]
            frames = item["input_features"]
            frames.data = seeker.sound.window(seeker.begin, self._traits.size).to(frames.data.dtype)

    def output(self, active: ActiveRequest, output: RequestOutput) -> list[Report]:
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
            if isinstance(report, TextChunk) and transcription.seeker is None:
                piece.chunks.append(report)
            elif isinstance(report, RequestDone):
                piece.done = report
        if transcription.seeker is not None:
            self._seek(transcription, transcription.seeker, active)
        return self._reports(transcription)

    def _seek(self, transcription: Transcription, seeker: Seeker, active: ActiveRequest) -> None:
        """Note the text of the current window that stays; at its end go on to the next one, or hear it again."""
        piece, token_ids = transcription.pieces[-1], active.token_ids
        if piece.done is None:
            self._settle(piece, active, seeker.clock.count_settled(token_ids) if seeker.thresholds.are_off else 0)
            return
        noted = CONFIDENCES.pop(active.request.request_id)
        begin, temperature = seeker.begin, seeker.temperature
        avg_logprob, no_speech = noted.avg_logprob(token_ids), noted.no_speech_prob
        parts = seeker.take(token_ids, avg_logprob, no_speech)
        if parts is None:
            piece.done = None
            self._admit(transcription, len(transcription.pieces) - 1)
            return
        words = self._decode([token_id for part in parts for token_id in part.token_ids])
        ratio = compression_ratio(words.encode()) if words else None
        about = (begin, temperature, avg_logprob, ratio, no_speech)
        end_s = len(transcription.samples) / self._hearing.sample_rate
        piece.segments = tuple(
            # The last window is longer than the sound, and so may be its last part.
            Segment(round(min(part.start_s, end_s), 3), round(min(part.end_s, end_s), 3), text, part.token_ids, *about)
            for part in parts
            if (text := self._decode(part.token_ids)).strip()
        )
        if transcription.request.transcription.word_timestamps:
            piece.words = tuple(self._align(transcription, seeker.sound, begin, active, parts))
        self._settle(piece, active, sum(len(part.token_ids) for part in parts))
        if seeker.num_frames:
            self._add_window(transcription, seeker)
            self._admit(transcription, len(transcription.pieces) - 1)

    def _align(
        self,
        transcription: Transcription,
        sound: Spectrogram,
        begin: int,
        active: ActiveRequest,
        parts: list[HeardPart],
    ) -> Iterator[Word]:
        """Yield the words of a window's parts."""
        if self._aligner is None:
            from omni_cli.models.transcription.word_times import WordAligner

            tokenizer = self.engine.renderer.get_tokenizer()
            device = self.engine.vllm_config.device_config.device
            self._aligner = WordAligner(self._config.model, self._config.dtype, device, tokenizer)
        frames, prompt_ids = sound.window(begin, self._traits.size), active.context["prompt_ids"]
        times_s = self._aligner.align(frames, sound.num_frames - begin, prompt_ids, active.token_ids)
        start_s, language = transcription.pieces[-1].start_s, self._name_language(transcription.language)
        for part in parts:
            yield from self._aligner.read_words(part.token_ids, times_s, start_s, language)
            times_s = times_s[len(part.token_ids) :]

    def _name_language(self, code: str | None) -> str:
        return str(self._model.supported_languages.get(code, "unknown")).lower()

    def _settle(self, piece: SoundWindow, active: ActiveRequest, end: int) -> None:
        """Pass on the text of a window's tokens up to `end`."""
        text, logprobs = self._decode(active.token_ids[piece.num_settled : end]), active.logprobs
        if text:
            counts = (0 if piece.done is None else piece.done.trace["num_input_tokens"], end)
            chunk = TextChunk("", text, *counts, tuple(logprobs[piece.num_settled : end]))
            piece.chunks.append(chunk)
        piece.num_settled = max(end, piece.num_settled)

    def _decode(self, token_ids: Sequence[int]) -> str:
        """Return the words of tokens, without times."""
        assert self._clock is not None
        words = [token_id for token_id in token_ids if token_id < self._clock.first_id]
        text: str = self.engine.renderer.get_tokenizer().decode(words, skip_special_tokens=True)
        return text

    def _reports(self, transcription: Transcription) -> list[Report]:
        """Return the text that nothing is missing before, and the end of a request whose pieces all have ended."""
        request_id = transcription.request.request_id
        reports: list[Report] = []
        for piece in transcription.pieces[transcription.num_sent :]:
            for chunk in piece.chunks:
                text = self._join_text(transcription, piece, piece.reader.process_delta(chunk.text, False))
                if text or chunk.logprobs:
                    reports.append(msgspec.structs.replace(chunk, request_id=request_id, text=text))
            piece.chunks.clear()
            if piece.done is None:
                return reports
            rest = self._join_text(transcription, piece, piece.reader.process_delta("", True))
            if rest:
                counts = (piece.done.trace["num_input_tokens"], piece.done.trace["num_output_tokens"])
                reports.append(TextChunk(request_id, rest, *counts))
            transcription.num_sent += 1
        del self._transcriptions[request_id]
        return [*reports, self._finish_whole(transcription)]

    def _join_text(self, transcription: Transcription, piece: SoundWindow, text: str) -> str:
        """Return more text of a piece as it goes on in the whole text."""
        if not piece.has_text and (transcription.seeker is None or not transcription.text):
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
        duration_s = len(transcription.samples) / self._hearing.sample_rate
        pieces = zip(transcription.pieces, texts, strict=True)
        segments = tuple(
            segment
            for piece, text in pieces
            for segment in piece.segments or self._segments(transcription, piece, text)
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
        words = None
        if transcription.request.transcription.word_timestamps:
            words = tuple(word for piece in transcription.pieces for word in piece.words)
        transcript = Transcript(language, duration_s, segments, words, self._name_language(language))
        text = TextOutput(transcription.text, token_ids, trace["finish_reason"], transcript=transcript)
        return RequestDone(transcription.request.request_id, trace, text=text)

    def _get_language(self, text: str) -> str | None:
        """Return the code of the language that a model names before its transcript."""
        named = _LANGUAGE.match(text)
        codes = {name: code for code, name in self._model.supported_languages.items()}
        return None if named is None else codes.get(named[1])

    def _segments(self, transcription: Transcription, piece: SoundWindow, text: TextOutput) -> Iterator[Segment]:
        """Yield a piece's text as one part; a model that writes times has noted its own."""
        end_s = piece.start_s + len(piece.samples) / self._hearing.sample_rate
        words = self.engine.renderer.get_tokenizer().decode(text.token_ids, skip_special_tokens=True)
        words = self._model.post_process_output(words).strip()
        if words and self._clock is None:
            temperature = transcription.request.sampling.get("temperature")
            yield Segment(round(piece.start_s, 3), round(end_s, 3), words, text.token_ids, temperature=temperature)

    def get_request_id(self, active: ActiveRequest) -> str:
        transcription: Transcription = active.context["transcription"]
        return transcription.request.request_id

    def abort(self, request_id: str) -> None:
        if request_id in self.active:  # the failure of a piece is that of the whole
            request_id = self.get_request_id(self.active[request_id])
        transcription = self._transcriptions.pop(request_id, None)
        for active in [each for each in self.active.values() if each.context["transcription"] is transcription]:
            CONFIDENCES.pop(active.request.request_id, None)
            super().abort(active.request.request_id)
