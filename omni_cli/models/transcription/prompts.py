"""Prompts for transcripts, by vLLM's interface for models that make them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from transformers import GenerationConfig
from transformers.models.whisper.tokenization_whisper import LANGUAGES
from vllm.config import ModelConfig
from vllm.config.speech_to_text import SpeechToTextConfig, SpeechToTextParams
from vllm.model_executor.model_loader import get_model_cls
from vllm.multimodal.inputs import MultiModalFieldConfig
from vllm.renderers.inputs.preprocess import parse_model_prompt
from vllm.tokenizers import cached_tokenizer_from_config

from omni_cli.core.errors import InputError
from omni_cli.requests.outputs import GenerateRequest


def read_own(config: ModelConfig) -> GenerationConfig:
    """Return a checkpoint's own settings; what those of an old Whisper lack is added."""
    is_whisper = config.hf_config.model_type == "whisper"
    try:
        own = GenerationConfig.from_pretrained(config.model)
    except OSError:
        own = GenerationConfig.from_model_config(config.hf_config) if is_whisper else GenerationConfig()
    if is_whisper and not hasattr(own, "no_timestamps_token_id"):
        own.no_timestamps_token_id = cached_tokenizer_from_config(config).get_vocab()["<|notimestamps|>"]
        own.is_multilingual = config.hf_config.vocab_size > 51_864  # that of OpenAI's English models
    return own


def read_languages(own: GenerationConfig, model: Any, tokenizer: Any) -> dict[int, str]:
    """Return the codes of the languages that a model tells apart, by token; vLLM lists fewer than Whisper has."""
    marks = (f"<|{code}|>" for code in model.supported_languages)
    ids = getattr(own, "lang_to_id", None) or {mark: tokenizer.convert_tokens_to_ids(mark) for mark in marks}
    return {token_id: mark.strip("<|>") for mark, token_id in ids.items()}


def encode_apart(engine_input: Any) -> None:
    """Have the sounds of a preprocessed prompt encoded with sounds of their length alone.

    vLLM would fill up shorter ones of a step, and some encoders see what is filled in. It batches only sounds whose
    shared fields are equal. Where a processor fills sounds up, whole numbers tell their lengths.
    """
    sounds = [sound for sound in engine_input.get("mm_kwargs", {}).get("audio", ()) if sound is not None]
    for sound in sounds:
        tensors = [part.data for part in sound.values() if isinstance(part.data, torch.Tensor)]
        sizes = list(max(tensors, key=torch.numel).shape) if tensors else [0]
        sizes += [int(tensor.sum()) for tensor in tensors if not tensor.is_floating_point()]
        shape = torch.tensor(sizes)
        (sound["_shape"],) = MultiModalFieldConfig.shared("audio", 1, keep_on_cpu=True).build_elems("_shape", shape)


class SpeechPrompts:
    """A model of vLLM, and how it hears."""

    def __init__(self, config: ModelConfig) -> None:
        self.config, self.model = config, cast(Any, get_model_cls(config))
        self.hearing: SpeechToTextConfig = self.model.get_speech_to_text_config(config, "transcribe")

    def make(self, request: GenerateRequest, language: str | None, samples: np.ndarray) -> Any:
        """Return vLLM's prompt for a request with these samples, at the rate that the model hears."""
        task = request.transcription.task
        params = SpeechToTextParams(
            audio=samples,
            stt_config=self.hearing,
            model_config=self.config,
            language=language,
            task_type=task,
            to_language="en" if task == "translate" else None,
            request_prompt=request.prompt or "",
        )
        return parse_model_prompt(self.config, self.model.get_generation_prompt(params))

    def read_language(self, asked: str | None) -> str | None:
        """Return the code of a language that is given by its code or its name, in any case."""
        codes = {name.casefold(): code for code, name in (LANGUAGES | self.model.supported_languages).items()}
        return None if asked is None else codes.get(asked.casefold(), asked.lower())

    def choose_language(self, request: GenerateRequest) -> str | None:
        """Return the language of a request, None for one to detect; raise `InputError` for what the model ignores."""
        asked = request.transcription
        try:
            language: str | None = self.model.validate_language(self.read_language(asked.language))
        except ValueError as error:
            known = ", ".join(self.model.supported_languages)
            raise InputError(f"unknown `language`: {asked.language}", hint=f"choose from: {known}") from error
        if request.prompt and not self._heeds(request, language, prompt=None):
            raise InputError("this model takes no words before the transcript", hint="drop `prompt`")
        plain = replace(asked, task="transcribe")
        if asked.task == "translate" and not self._heeds(request, language, transcription=plain):
            raise InputError("this model does not translate", hint="drop `task`")
        return language

    def _heeds(self, request: GenerateRequest, language: str | None, **without: Any) -> bool:
        """True if the prompt is another without a part of the request."""
        second = np.zeros(int(self.hearing.sample_rate), np.float32)
        # A model that detects the language has none yet.
        language = language or "en"
        return str(self.make(request, language, second)) != str(
            self.make(replace(request, **without), language, second)
        )
