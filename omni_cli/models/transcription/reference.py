"""transformers' `generate` as the reference of speech recognition: of Whisper for sounds of any length."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers
from transformers import Qwen3ASRProcessor, VoxtralProcessor, VoxtralRealtimeProcessor, WhisperProcessor
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES

from omni_cli.checkpoints.files import read_model_kind, read_object
from omni_cli.config.schema import ARStageConfig, EngineConfig
from omni_cli.models.forcing import ForcedTokens, led_by, replace_attribute
from omni_cli.models.language_model.reference import LanguageModelReference
from omni_cli.models.reference import get_limits, load_model
from omni_cli.models.scores import EngineOutput, Expected, NoReferenceError, Way
from omni_cli.models.transcription.long_form import TimeTokens
from omni_cli.requests.encoding import resample
from omni_cli.requests.outputs import GenerateRequest

if TYPE_CHECKING:
    from omni_cli.models.transcription.prompts import SpeechPrompts

_HAVE_PROMPTS = (WhisperProcessor, VoxtralProcessor, VoxtralRealtimeProcessor, Qwen3ASRProcessor)
# Of Qwen3-ASR, after the language.
_TRANSCRIPT_MARK = "<asr_text>"


class _EndOfSoundError(Exception):
    """All frames of the sound have been heard."""


class TranscriptionReference:
    """A model of transformers with its processor."""

    def __init__(self, folder: Path, config: EngineConfig, way: Way) -> None:
        (stage,) = config.stages
        check_class(folder)
        self._folder = str(folder)
        self._name = stage.name
        self._limits = get_limits(config, stage.name)
        trust = {"trust_remote_code": True} if config.trust_remote_code else {}
        # vLLM registers configurations of its own under the same names, in whichever process imported it.
        with replace_attribute(CONFIG_MAPPING, "_extra_content", {}):
            self._processor: Any = transformers.AutoProcessor.from_pretrained(folder, **trust)
            self._model = load_model(transformers.AutoModelForSpeechSeq2Seq, folder, way, config)
        self._tokenizer: Any = self._processor.tokenizer
        self._prompts = None if isinstance(self._processor, _HAVE_PROMPTS) else read_prompts(folder, config)
        self._mark: int | None = self._tokenizer.get_vocab().get(_TRANSCRIPT_MARK)
        assert isinstance(stage, ARStageConfig)
        end = self._model.generation_config.eos_token_id
        self.ends: list[int] = [end] if isinstance(end, int) else list(end or ())
        sizes = self._model.config
        if sizes.is_encoder_decoder:
            self._max_length: int = getattr(sizes, "max_target_positions", None) or sizes.max_position_embeddings
        else:
            self._max_length = stage.max_model_len or sizes.get_text_config().max_position_embeddings
        self.num_input_tokens = 0
        # Tokens of the text, without those of a window that the next one hears again.
        self.said: list[int] = []
        # Of the parts of a Whisper's transcript that have words, in seconds.
        self._spans: list[tuple[float, float]] = []

    def generate(
        self, request: GenerateRequest, max_tokens: int | None = None, tokens: ForcedTokens | None = None
    ) -> list[int]:
        """Return the ids of the greedy transcript, by default as many as fit the model, or those of `tokens`."""
        extractor = self._processor.feature_extractor
        ((samples, sample_rate),) = request.media.audio
        samples = resample(samples, sample_rate, extractor.sampling_rate)
        is_whisper = isinstance(self._processor, WhisperProcessor)
        is_cut = isinstance(self._processor, Qwen3ASRProcessor)
        if is_cut and len(samples) > extractor.chunk_length * extractor.sampling_rate:
            raise NoReferenceError("transformers joins the pieces of a longer sound in another way")
        arguments: dict[str, Any] = {**self._limits, "do_sample": False}
        if is_whisper and tokens is not None:
            max_tokens = request.sampling.get("max_tokens")  # of each window
        if max_tokens is not None:
            arguments["max_new_tokens"] = max_tokens
        with torch.no_grad(), led_by(self._model, tokens, ends=not is_whisper):
            if is_whisper:
                return self._of_whisper(request, samples, arguments, tokens)
            inputs = self._inputs(request, samples).to(self._model.device, self._model.dtype)
            prompt_ids = inputs["decoder_input_ids" if self._model.config.is_encoder_decoder else "input_ids"]
            self.num_input_tokens = prompt_ids.shape[1]
            longest = {"max_new_tokens": self._max_length - self.num_input_tokens}
            ids: list[int] = self._model.generate(**inputs, **{**longest, **arguments})[0].tolist()
            self.said = ids[self.num_input_tokens :]
            return self.said

    def _inputs(self, request: GenerateRequest, samples: np.ndarray) -> Any:
        """Return the processor's inputs for a prompt in the form of the model's own transcription requests."""
        processor, language = self._processor, request.transcription.language
        if self._prompts is not None:
            return prompted_inputs(processor, self._prompts, request)
        if isinstance(processor, VoxtralRealtimeProcessor):
            return processor(samples, sampling_rate=processor.feature_extractor.sampling_rate, return_tensors="pt")
        if isinstance(processor, VoxtralProcessor):
            rate = processor.feature_extractor.sampling_rate
            sound: dict[str, Any] = {"audio": samples, "sampling_rate": rate, "format": ["wav"]}
            return processor.apply_transcription_request(**sound, language=language, model_id=self._folder)
        return processor.apply_transcription_request(samples, language=language, prompt=request.prompt or None)

    def _of_whisper(
        self, request: GenerateRequest, samples: np.ndarray, arguments: dict[str, Any], tokens: ForcedTokens | None
    ) -> list[int]:
        """Return the tokens of all windows, each with its end; what comes before them is as in `Seeker.before`."""
        extractor, own, asked = self._processor.feature_extractor, self._model.generation_config, request.transcription
        is_long = len(samples) > extractor.n_samples
        form = {"truncation": False, "padding": "longest"} if is_long else {}
        inputs = extractor(samples, sampling_rate=extractor.sampling_rate, return_tensors="pt", **form)
        features = inputs["input_features"].to(self._model.device, self._model.dtype)
        num_frames = max(1, len(samples) // extractor.hop_length)
        if getattr(own, "is_multilingual", True):
            arguments |= {"task": asked.task, "language": asked.language}
        if request.prompt:
            prompt_ids = self._processor.get_prompt_ids(request.prompt, return_tensors="pt")
            arguments["prompt_ids"] = prompt_ids.to(self._model.device)
        if asked.condition_on_prev_tokens:
            arguments |= {"condition_on_prev_tokens": True, "prompt_condition_type": asked.prompt_condition_type}
        # transformers puts a prompt before all windows unless the text so far comes there as well.
        is_first_alone = not asked.condition_on_prev_tokens and asked.prompt_condition_type == "first-segment"
        clock = TimeTokens.of(own, self._model.config, extractor, self._tokenizer)
        windows: list[list[int]] = []
        self.num_input_tokens, self.said, self._spans = 0, [], []
        run_window, read_window = self._model.generate_with_fallback, self._model._retrieve_segment

        def note_parts(**given: Any) -> Any:
            parts, step = read_window(**given)
            self.said += [token_id for part in parts for token_id in part["tokens"].tolist()]
            spoken = [part for part in parts if self.read(part["tokens"].tolist()).strip()]
            self._spans += [(float(part["start"]), float(part["end"])) for part in spoken]
            return parts, step

        def note_window(**given: Any) -> Any:
            if int(given["seek"][0]) >= num_frames or (tokens is not None and tokens.is_at_end):
                raise _EndOfSoundError  # transformers would go on in the silence that fills a short sound up
            num_before = given["decoder_input_ids"][0].tolist().index(own.decoder_start_token_id)
            is_bare = bool(windows) and is_first_alone
            if num_before and not is_bare:
                # The engine hears a window again that hardly has a word behind other text.
                free = [rule for rule in given["logits_processor"] if rule is not tokens]
                ids = run_window(**{**given, "logits_processor": transformers.LogitsProcessorList(free)})[0][0].tolist()
                num_left = num_frames - int(given["seek"][0])
                is_bare = clock.stops_at_once(ids, min(clock.size, num_left))
            if num_before and is_bare:
                given = _without_first(given, num_before)
            if tokens is not None:
                given["stopping_criteria"] = [lambda ids, _scores: torch.full((len(ids),), tokens.is_at_end)]
            outputs = run_window(**given)
            length = given["decoder_input_ids"].shape[1]
            self.num_input_tokens += length
            windows.append(outputs[1][0][length:].tolist())
            return outputs

        with (
            replace_attribute(self._model, "generate_with_fallback", note_window),
            replace_attribute(self._model, "_retrieve_segment", note_parts),
            contextlib.suppress(_EndOfSoundError),
        ):
            self._model.generate(features, return_timestamps=True, **arguments)
        return [token_id for window in windows for token_id in window]

    def tokens_of(self, request: GenerateRequest, text: str) -> list[int]:
        """Return the ids of a server's transcript: the reference's own while they say the same, then the rest's."""
        own = self.generate(request)
        words = self.said[:-1] if self.said[-1:] and self.said[-1] in self.ends else self.said
        text = text.strip()
        if self.read(words).rstrip() == text:
            return own
        texts = [self.read(words[:number]) for number in range(len(words) + 1)]
        num_same = max(number for number, said in enumerate(texts) if text.startswith(said))
        rest = text[len(texts[num_same]) :]
        # Whisper writes a space before a transcript, which servers leave out.
        if rest and not texts[num_same] and words and self._tokenizer.decode(words[:1]).startswith(" "):
            rest = f" {rest}"
        found = [*words[:num_same], *self._tokenizer.encode(rest, add_special_tokens=False), *self.ends[:1]]
        self.said = found[: max(len(own), self._max_length - self.num_input_tokens)]
        return self.said

    def read(self, token_ids: list[int]) -> str:
        """Return what tokens say, without what Qwen3-ASR writes before a transcript."""
        if self._mark in token_ids:
            token_ids = token_ids[token_ids.index(self._mark) + 1 :]
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        return text.lstrip()

    def expected(self, output: EngineOutput) -> Expected:
        tokens = ForcedTokens.of(output.tokens[self._name])
        self.generate(output.request, len(tokens.token_ids), tokens)
        num_input_tokens, spans = self.num_input_tokens, None
        if output.request.transcription.timestamps and isinstance(self._processor, WhisperProcessor):
            self.generate(output.request, output.request.sampling.get("max_tokens"))
            spans = tuple(self._spans)
        return Expected({self._name: tokens.scores}, num_input_tokens=num_input_tokens, spans=spans)


def _without_first(given: dict[str, Any], number: int) -> dict[str, Any]:
    """Return the arguments of a window without the first tokens of its prompt."""
    ids = given["decoder_input_ids"][:, number:]
    for rule in given["logits_processor"]:
        if hasattr(rule, "set_begin_index"):
            rule.set_begin_index(ids.shape[1])
    # Its size is that of the longer prompt.
    kwargs = {name: value for name, value in given["kwargs"].items() if name != "decoder_attention_mask"}
    return {**given, "decoder_input_ids": ids, "kwargs": kwargs}


class ListenerReference(LanguageModelReference):
    """A language model of transformers, with vLLM's prompts for transcripts."""

    def __init__(self, folder: Path, config: EngineConfig, way: Way) -> None:
        check_class(folder)
        super().__init__(folder, config, way)
        self._prompts = read_prompts(folder, config)

    def inputs(self, request: GenerateRequest) -> Any:
        if not request.transcription.asked:
            return super().inputs(request)
        return prompted_inputs(self._processor, self._prompts, request)


def check_class(folder: Path) -> None:
    """Raise `NoReferenceError` for a model that transformers does not have."""
    kind, config = read_model_kind(folder), read_object(folder / "config.json")
    if not hasattr(transformers, kind) and config.get("model_type") not in MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES:
        raise NoReferenceError(f"transformers has no {kind}")


def read_prompts(folder: Path, config: EngineConfig) -> SpeechPrompts:
    """Return vLLM's prompts for a checkpoint."""
    # vLLM registers configurations of its own in transformers, which are not the reference's.
    from vllm.engine.arg_utils import EngineArgs

    from omni_cli.backends.vllm.registry import resolve_in_process
    from omni_cli.models.transcription.prompts import SpeechPrompts

    resolve_in_process(read_model_kind(folder))
    arguments = EngineArgs(model=str(folder), dtype="float32", trust_remote_code=config.trust_remote_code)
    return SpeechPrompts(arguments.create_model_config())


def prompted_inputs(processor: Any, prompts: SpeechPrompts, request: GenerateRequest) -> Any:
    """Return the inputs of a model of transformers for vLLM's prompt. Raises `NoReferenceError` for several windows."""
    hearing = prompts.hearing
    rate = int(hearing.sample_rate)
    ((samples, own_rate),) = request.media.audio
    samples = resample(samples, own_rate, rate)
    if hearing.allow_audio_chunking and len(samples) > (hearing.max_audio_clip_s or 0) * rate:
        raise NoReferenceError("transformers joins the pieces of a longer sound in another way")
    prompt = prompts.make(request, prompts.choose_language(request), samples)
    if "encoder_prompt" in prompt:
        # Cohere ASR's filters are those of its release, in bfloat16, which transformers does not round to.
        extractor, window = processor.feature_extractor, torch.hann_window
        extractor.mel_filters = extractor.mel_filters.bfloat16().float()
        with replace_attribute(torch, "hann_window", lambda *size, **form: window(*size, **form).bfloat16().float()):
            heard = extractor(samples, sampling_rate=rate, return_tensors="pt")
        del heard["audio_chunk_index"]
        heard["decoder_input_ids"] = torch.tensor([prompt["encoder_prompt"]["prompt_token_ids"]])
        return heard
    # Ids stand as they are; vLLM adds the special tokens of the tokenizer to a text.
    text = prompt["prompt"] if "prompt" in prompt else processor.tokenizer.decode(prompt["prompt_token_ids"])
    special = {"add_special_tokens": "prompt" in prompt}
    return processor(text=[text], audio=[samples], sampling_rate=rate, return_tensors="pt", **special)
