"""A speech recognition model on vLLM, whose interface for them (`SupportsTranscription`) makes prompts and pieces."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from transformers.models.whisper.tokenization_whisper import LANGUAGES
from vllm import SamplingParams
from vllm.outputs import RequestOutput
from vllm.renderers.inputs.preprocess import parse_model_prompt

from omni_cli.backends.vllm.stage import ActiveRequest
from omni_cli.backends.vllm.text_stage import TextStage
from omni_cli.core.errors import InputError
from omni_cli.models.transcription import encoder_attention  # noqa: F401 - vLLM's encoders find it
from omni_cli.models.transcription.cutting import Cut, cut, find_seam
from omni_cli.models.transcription.family import OWN_MODELS
from omni_cli.models.transcription.long_form import Seeker, TimedModel
from omni_cli.models.transcription.prompts import SpeechPrompts, encode_apart, read_languages, read_own
from omni_cli.models.transcription.whisper_rules import CONFIDENCES, FIRST_IDS, WINDOW, Confidence, WhisperRules
from omni_cli.models.transcription.windows import SoundWindow, Transcription, without_first
from omni_cli.requests.contents import Media, Segment, Transcript, TranscriptionOptions, Word
from omni_cli.requests.encoding import resample
from omni_cli.requests.events import TextDelta
from omni_cli.requests.outputs import GenerateRequest, TextOutput
from omni_cli.stage.messages import Report, RequestDone
from omni_cli.stage.protocol import StageSpec

# A shorter sound has not one frame of a spectrogram.
_MIN_SAMPLES = 400
_LANGUAGE = re.compile(r"\s*language (.+?)<asr_text>")
_CUT = "the transcript is cut: the model reached its maximum of tokens"


class TranscriptionStage(TextStage):
    """Transcribes sounds of any length.

    A model that writes times goes on from the last one, window after window. Otherwise all pieces run at once, and
    their texts are joined in order.
    """

    def __init__(self, spec: StageSpec, emit: Callable[[Report], None]) -> None:
        super().__init__(spec, emit)
        self._config = self.engine.vllm_config.model_config
        self._speech = SpeechPrompts(self._config)
        self._model, self._hearing = self._speech.model, self._speech.hearing
        own, tokenizer = read_own(self._config), self.engine.renderer.get_tokenizer()
        self._is_multilingual: bool = getattr(own, "is_multilingual", True)
        self._timed: TimedModel | None = None
        self._marks: Mapping[str, int] = tokenizer.get_added_vocab()
        if self._model.supports_explicit_language_detection:
            self._languages = read_languages(own, self._model, tokenizer)
            processor = self.engine.renderer.get_mm_processor()
            # A prompt of text that came before begins with another token than vLLM's start, which it would add.
            processor.skip_decoder_start_token = True
            self._timed = TimedModel(self.engine.vllm_config, own, processor, tokenizer)
        self._transcriptions: dict[str, Transcription] = {}

    @cached_property
    def _aligner(self) -> Any:
        """The forced aligner, which is loaded for the first request that needs it; None without one."""
        from omni_cli.models.transcription.word_times import ForcedAligner

        folder, device = self.spec.ar.aligner, self.engine.vllm_config.device_config.device
        return folder and ForcedAligner(folder, self._config.dtype, device)

    @property
    def _has_heads(self) -> bool:
        """True if a Whisper's own attention tells the times of words; an aligner comes before it."""
        return self._timed is not None and self._timed.has_words and self.spec.ar.aligner is None

    def engine_args(self) -> dict[str, object]:
        arguments = {**super().engine_args(), **({} if self.role.chats else {"logits_processors": [WhisperRules]})}
        if own := OWN_MODELS.get(self.spec.architecture):
            arguments["hf_overrides"] = {"architectures": [own]}
        return arguments

    def warm_up_request(self) -> GenerateRequest | None:
        if self.role.chats:
            return super().warm_up_request()
        media = Media(audio=((np.zeros(16_000, np.float32), 16_000),))
        return GenerateRequest("", media=media, transcription=TranscriptionOptions(language="en"))

    def add(self, request: GenerateRequest) -> None:
        if self.role.chats and not request.transcription.asked:
            super().add(request)
            return
        language = self._check(request)
        if request.transcription.word_timestamps and not self._has_heads:
            self._aligner.check_language(language)
        rate = int(self._hearing.sample_rate)
        samples = resample(*request.media.audio[0], rate)
        if len(samples) < _MIN_SAMPLES:
            raise InputError(f"the sound is empty: it has {len(samples)} samples at {rate} Hz")
        transcription = Transcription(request, [], language, time.perf_counter(), samples, rate)
        if self._timed is None:
            window_s = self._hearing.allow_audio_chunking and self._hearing.max_audio_clip_s
            pieces = cut(samples, rate, window_s) if window_s else [Cut(0, len(samples))]
            for piece in pieces:
                self._add_window(transcription, piece.begin, piece.end, overlaps=piece.overlaps)
        else:
            asked = request.sampling.get("temperature", self.spec.ar.sampling.temperature)
            transcription.seeker = self._timed.new_seeker(request, samples, float(asked or 0.0))
            self._add_window(transcription, *transcription.seeker.get_samples())
        self._transcriptions[request.request_id] = transcription
        try:
            detects = language is None and self._timed is not None
            for number in [None] if detects else range(len(transcription.pieces)):
                self._admit(transcription, number)
        except InputError:
            self.abort(request.request_id)
            raise

    def _add_window(self, transcription: Transcription, begin: int, end: int, *, overlaps: bool = False) -> None:
        start_s, reader = begin / self._hearing.sample_rate, self._model.get_streaming_post_processor_cls()()
        transcription.pieces.append(SoundWindow(start_s, transcription.samples[begin:end], reader, overlaps))

    def _check(self, request: GenerateRequest) -> str | None:
        """Return the language; raise `InputError` for a request that the model cannot run."""
        text, media, asked = request.text, request.media, request.transcription
        if request.messages or text.prompt_token_ids is not None or text.raw or text.reply is not None:
            raise InputError("this model transcribes speech: it does not chat")
        if len(media.audio) != 1 or media.images or media.videos:
            raise InputError(f"this model transcribes one sound per request, not {len(media.audio)}")
        # A listener's profile has those of its chats.
        if request.sampling.get("stop", None if self.role.chats else self.spec.ar.sampling.stop):
            raise InputError("a transcript is that of the whole sound", hint="drop `stop`, also of the profile")
        if asked.timestamps and self._timed is None:
            raise InputError("this model tells no times", hint="drop `timestamps`, or ask for `json`")
        if asked.speakers and not self._model.supports_diarized_transcription:
            raise InputError("this model does not tell speakers apart", hint="ask for another `response_format`")
        if asked.word_timestamps and not self._has_heads and self.spec.ar.aligner is None:
            lacks = "generation_config.json has no `alignment_heads`" if self._timed else "stage has no `aligner`"
            raise InputError(f"this model tells no times of words: its {lacks}", hint="drop `word_timestamps`")
        if mark := next((each for each in self._marks if each in (request.prompt or "")), None):
            raise InputError(f"the `prompt` has `{mark}`, which this model does not read as text", hint="take it out")
        if self._is_multilingual:
            return self._speech.choose_language(request)
        if self._speech.read_language(asked.language) not in (None, "en") or asked.task == "translate":
            raise InputError("this model hears English only: it takes no other `language` and does not translate")
        return "en"

    def _admit(self, transcription: Transcription, number: int | None) -> None:
        """Run a piece, or without its number the detection of the language."""
        # A window that is heard again needs another name while its first one leaves the engine.
        transcription.num_admitted += 1
        request_id = f"{transcription.request.request_id}/{transcription.num_admitted}"
        request = replace(transcription.request, request_id=request_id)
        context = {"transcription": transcription, "piece": number}
        self.admit(ActiveRequest(request, time.perf_counter(), context=context))

    def render(self, active: ActiveRequest) -> tuple[dict[str, Any], SamplingParams]:
        if "transcription" not in active.context:
            return super().render(active)
        transcription: Transcription = active.context["transcription"]
        number, request, seeker = active.context["piece"], transcription.request, transcription.seeker
        if number is None and seeker is not None:
            prompt = self._model.get_language_detection_prompt(transcription.pieces[0].samples, self._hearing)
            params = SamplingParams(temperature=0.0, max_tokens=1, allowed_token_ids=list(self._languages))
            return seeker.name_sound(parse_model_prompt(self._config, prompt)), params
        # A prompt comes before windows by the seeker's rules.
        asked = request if seeker is None else replace(request, prompt=None)
        prompt = self._speech.make(asked, transcription.language, transcription.pieces[number].samples)
        if seeker is None:
            own = {"temperature": request.sampling.get("temperature", 0.0), "stop": None} if self.role.chats else {}
            return prompt, self.sampling_params(request, **own)
        # Whisper's tokens of a prompt name the language and the task, those of an English one neither.
        start = prompt["decoder_prompt"]["prompt"] if self._is_multilingual else "<|startoftranscript|>"
        encode = self.engine.renderer.get_tokenizer().encode
        marks = encode(start.removesuffix("<|notimestamps|>"), add_special_tokens=False)
        prompt["decoder_prompt"] = {"prompt_token_ids": [*seeker.before(), marks[0]]}
        CONFIDENCES[active.request.request_id] = Confidence()
        active.context.update(num_forced=len(marks) - 1, prompt_ids=[*seeker.before(), *marks])
        notes = {WINDOW: active.request.request_id, FIRST_IDS: marks[1:]}
        params = self.sampling_params(request, temperature=seeker.temperature, extra_args=notes)
        if params.max_tokens is not None:
            params.max_tokens += len(marks) - 1
        return seeker.name_sound(prompt), params

    def on_prepared(self, active: ActiveRequest, engine_input: Any) -> None:
        """Put in the frames of the whole sound for those that vLLM made of a window alone."""
        super().on_prepared(active, engine_input)
        transcription: Transcription | None = active.context.get("transcription")
        if transcription is None or transcription.seeker is None:
            encode_apart(engine_input)
            return
        seeker = transcription.seeker
        (item,) = engine_input["decoder_prompt"]["mm_kwargs"]["audio"]
        frames = item["input_features"]
        frames.data = seeker.sound.window(seeker.begin, seeker.clock.size).to(frames.data.dtype)

    def output(self, active: ActiveRequest, output: RequestOutput) -> list[Report]:
        if "transcription" not in active.context:
            return super().output(active, output)
        transcription: Transcription = active.context["transcription"]
        number = active.context["piece"]
        if number is None:
            transcription.language = self._languages[output.outputs[0].token_ids[0]]
            self._admit(transcription, 0)
            return []
        piece = transcription.pieces[number]
        for report in super().output(active, output):
            if isinstance(report, TextDelta) and transcription.seeker is None:
                piece.chunks.append(report)
            elif isinstance(report, RequestDone):
                piece.done = without_first(report, active.context.get("num_forced", 0))
        if transcription.seeker is not None and self._timed is not None:
            self._seek(transcription, transcription.seeker, self._timed, active)
        reports = self._reports(transcription)
        if piece.done is not None and transcription.request.request_id in self._transcriptions:
            reports.append(transcription.progress())
        return reports

    def _seek(self, transcription: Transcription, seeker: Seeker, timed: TimedModel, active: ActiveRequest) -> None:
        """Note the text of the current window that stays; at its end go on to the next one, or hear it again."""
        piece, token_ids = transcription.pieces[-1], active.token_ids[active.context["num_forced"] :]
        if piece.done is None:
            end = seeker.clock.count_settled(token_ids) if seeker.thresholds.are_off else 0
            self._settle(piece, active, timed, end)
            return
        noted = CONFIDENCES.pop(active.request.request_id)
        begin, temperature = seeker.begin, seeker.temperature
        confidence = noted.avg_logprob(token_ids), noted.no_speech_prob
        is_given = transcription.request.transcription.language is not None or bool(seeker.before())
        heard_in = None if is_given or noted.language_id is None else self._languages[noted.language_id]
        parts = seeker.take(token_ids, *confidence)
        if parts is None:
            piece.done = None
            self._admit(transcription, len(transcription.pieces) - 1)
            return
        end_s = len(transcription.samples) / self._hearing.sample_rate
        about = Segment(0.0, 0.0, "", (), begin, temperature, confidence[0], None, confidence[1], heard_in)
        piece.segments = tuple(timed.make_segments(parts, end_s, about))
        piece.samples = piece.samples[: (seeker.begin - begin) * seeker.sound.hop]  # the rest is heard again
        if transcription.request.transcription.word_timestamps and self._has_heads:
            timed.find_words(seeker, begin, parts, active.context["prompt_ids"], token_ids)
        self._settle(piece, active, timed, sum(len(part.token_ids) for part in parts))
        if seeker.num_frames:
            self._add_window(transcription, *seeker.get_samples())
            self._admit(transcription, len(transcription.pieces) - 1)

    def _settle(self, piece: SoundWindow, active: ActiveRequest, timed: TimedModel, end: int) -> None:
        """Pass on the text of a window's tokens up to `end`."""
        num_forced = active.context["num_forced"]
        if text := timed.decode(active.token_ids[num_forced:][piece.num_settled : end]):
            counts = (0 if piece.done is None else piece.done.trace["num_input_tokens"], end)
            chunk = TextDelta("", text, *counts, tuple(active.logprobs[num_forced:][piece.num_settled : end]))
            piece.chunks.append(chunk)
        piece.num_settled = max(end, piece.num_settled)

    def _reports(self, transcription: Transcription) -> list[Report]:
        """Return the text that nothing is missing before, and the end of a request whose pieces all have ended."""
        request_id = transcription.request.request_id
        reports: list[Report] = []
        for piece in transcription.pieces[transcription.num_sent :]:
            followers = transcription.pieces[transcription.num_sent + 1 :][:1]
            if followers and followers[0].overlaps:
                if piece.done is None or followers[0].done is None:
                    return reports
                self._make_seam(transcription, piece, followers[0])
            for chunk in piece.chunks:
                text = self._join_text(transcription, piece, piece.reader.process_delta(chunk.text, False))
                if text or chunk.logprobs:
                    reports.append(msgspec.structs.replace(chunk, request_id=request_id, text=text))
            piece.chunks.clear()
            if piece.done is None:
                return reports
            if rest := self._join_text(transcription, piece, piece.reader.process_delta("", True)):
                counts = (piece.done.trace["num_input_tokens"], piece.done.trace["num_output_tokens"])
                reports.append(TextDelta(request_id, rest, *counts))
            transcription.num_sent += 1
        del self._transcriptions[request_id]
        return [*reports, self._finish_whole(transcription)]

    def _make_seam(self, transcription: Transcription, piece: SoundWindow, follower: SoundWindow) -> None:
        """Leave out of two texts what they have twice."""
        left, right = piece.read_whole(), follower.read_whole()
        end, begin = find_seam(left.text, right.text, has_spaces=self._has_spaces(transcription))
        piece.chunks = [msgspec.structs.replace(left, text=left.text[:end])]
        follower.chunks = [msgspec.structs.replace(right, text=right.text[begin:])]

    def _has_spaces(self, transcription: Transcription) -> bool:
        return transcription.language not in self._model.no_space_languages

    def _join_text(self, transcription: Transcription, piece: SoundWindow, text: str) -> str:
        """Return more text of a piece as it goes on in the whole text."""
        if not piece.text and (transcription.seeker is None or not transcription.text):
            text = text.lstrip()
            if text and transcription.text and self._has_spaces(transcription):
                text = f" {text}"
        piece.text += text
        transcription.text += text
        return text

    def _finish_whole(self, transcription: Transcription) -> RequestDone:
        done = [piece.done for piece in transcription.pieces if piece.done is not None]
        texts = [each.text for each in done if each.text is not None]
        traces = [each.trace for each in done]
        token_ids = tuple(token_id for text in texts for token_id in text.token_ids)
        is_cut = any(text.finish_reason == "length" for text in texts)
        notes = dict.fromkeys([*(note for each in done for note in each.notes), *([_CUT] if is_cut else [])])
        pairs = zip(transcription.pieces, texts, strict=True)
        segments = tuple(part for pair in pairs for part in self._segments(transcription, *pair))
        trace = {
            **traces[0],
            "latency_s": time.perf_counter() - transcription.added_s,
            "ttft_s": min((each["ttft_s"] for each in traces if each["ttft_s"] is not None), default=None),
            "num_input_tokens": sum(each["num_input_tokens"] for each in traces),
            "num_output_tokens": len(token_ids),
            "finish_reason": "length" if is_cut else "stop",
            "output_token_ids": token_ids,
            "token_times_s": sorted(time_s for each in traces for time_s in each["token_times_s"]),
            "output_logprobs": [item for each in traces for item in each["output_logprobs"] or ()] or None,
        }
        # A model may name the language before its transcript.
        named = _LANGUAGE.match(texts[0].text)
        codes = {name: code for code, name in self._model.supported_languages.items()}
        language = transcription.language or (None if named is None else codes.get(named[1]))
        has_words = transcription.request.transcription.word_timestamps
        words = tuple(self._find_words(transcription, language)) if has_words else None
        duration_s = len(transcription.samples) / self._hearing.sample_rate
        name = {**LANGUAGES, **self._model.supported_languages}.get(language, "unknown").lower()
        transcript = Transcript(language, duration_s, segments, words, name)
        text = TextOutput(transcription.text, token_ids, trace["finish_reason"], transcript=transcript)
        return RequestDone(transcription.request.request_id, trace, text=text, notes=tuple(notes))

    def _find_words(self, transcription: Transcription, language: str | None) -> Iterator[Word]:
        if transcription.seeker is not None and self._timed is not None and self._has_heads:
            yield from self._timed.read_words(transcription.seeker, transcription.language)
            return
        for piece in transcription.pieces:
            yield from self._aligner.find_words(piece.samples, piece.text, piece.start_s, language)

    def _segments(self, transcription: Transcription, piece: SoundWindow, text: TextOutput) -> Iterator[Segment]:
        """Yield a piece's text as one part, or the parts that a model which writes times or speakers has noted."""
        yield from piece.segments
        end_s = piece.start_s + len(piece.samples) / self._hearing.sample_rate
        words = piece.text.strip()
        if words and transcription.request.transcription.speakers:
            space, is_cut = " " * self._has_spaces(transcription), text.finish_reason == "length"
            yield from piece.parts_of_speakers(self._model, space, end_s, is_cut=is_cut)
        elif words and self._timed is None:
            temperature = transcription.request.sampling.get("temperature")
            yield Segment(round(piece.start_s, 3), round(end_s, 3), words, text.token_ids, temperature=temperature)

    def get_request_id(self, active: ActiveRequest) -> str:
        transcription: Transcription | None = active.context.get("transcription")
        return active.request.request_id if transcription is None else transcription.request.request_id

    def tokenize_params(self, request: GenerateRequest) -> Any:
        # As vLLM's own server: its prompts are no chat template's.
        return super().tokenize_params(request) if self.role.chats and not request.transcription.asked else None

    def abort(self, request_id: str) -> None:
        if request_id in self.active:  # the failure of a piece is that of the whole
            request_id = self.get_request_id(self.active[request_id])
        transcription = self._transcriptions.pop(request_id, None)
        if transcription is None:
            super().abort(request_id)
            return
        for active in [each for each in self.active.values() if each.context.get("transcription") is transcription]:
            CONFIDENCES.pop(active.request.request_id, None)
            super().abort(active.request.request_id)
