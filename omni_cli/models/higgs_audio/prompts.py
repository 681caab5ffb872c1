"""The conversation that ends with the text to speak, and transformers' tokenizer and processor, whose parts are in two
folders.

A conversation has a scene, and voices with their words as turns before the text. The tokenizer, which is the codec, has
a checkpoint of its own. processor_config.json names it: a folder inside that of the language model, or another
repository.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, DacFeatureExtractor, HiggsAudioV2Processor

from omni_cli.checkpoints.files import read_object
from omni_cli.checkpoints.resolve import resolve_model
from omni_cli.checkpoints.shards import lacking, of_another_model
from omni_cli.core.compat.torchvision import import_with_torchaudio
from omni_cli.core.errors import CheckpointError, InputError
from omni_cli.models.higgs_audio.family import CLONING, SPEAKERS
from omni_cli.models.voices import speaker_for, text_to_speak
from omni_cli.requests.encoding import resample
from omni_cli.requests.outputs import GenerateRequest, Part
from omni_cli.requests.voices import check_voices

PROCESSOR, SOURCE = "processor_config.json", "audio_tokenizer_name_or_path"
_MODULE = "transformers.models.higgs_audio_v2_tokenizer.modeling_higgs_audio_v2_tokenizer"
# Settings of the processor that are not parts with files of their own.
_NAMES = ("audio_token", "audio_bos_token", "audio_eos_token", "audio_delay_token")
_IDS = ("audio_stream_bos_id", "audio_stream_eos_id")


def tokenizer_class() -> Any:
    """Return `HiggsAudioV2TokenizerModel`, which transformers itself offers only with torchaudio."""
    return import_with_torchaudio(_MODULE).HiggsAudioV2TokenizerModel


def tokenizer_folder(model: str | Path) -> Path:
    """Return the folder of the codec that belongs to a language model, downloaded if necessary.

    Raises `CheckpointError`.
    """
    source = read_object(Path(model) / PROCESSOR).get("audio_tokenizer", {}).get(SOURCE)
    if not isinstance(source, str):
        raise CheckpointError(
            f"`{Path(model) / PROCESSOR}` names no audio tokenizer", hint=f"set `audio_tokenizer.{SOURCE}` in it"
        )
    inside = Path(model) / source
    return inside if inside.is_dir() else Path(resolve_model(source))


def load_tokenizer(model: str | Path, dtype: torch.dtype = torch.float32) -> Any:
    """Return the whole codec, for recordings in float32: their codes must not depend on a profile's dtype.

    Raises `CheckpointError` for one whose weights are missing or of another model.
    """
    folder = tokenizer_folder(model)
    codec, found = tokenizer_class().from_pretrained(
        folder, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True
    )
    for name, shape, expected in found["mismatched_keys"]:
        raise of_another_model(folder, name, shape, expected)
    if found["missing_keys"]:
        raise lacking(folder, sorted(found["missing_keys"]))
    return codec.eval()


def load_processor(model: str | Path, audio_tokenizer: Any) -> Any:
    """Return transformers' processor with a loaded codec, which it would otherwise look for by itself."""
    settings = read_object(Path(model) / PROCESSOR)
    tokenizer = AutoTokenizer.from_pretrained(model)
    processor = HiggsAudioV2Processor(
        DacFeatureExtractor.from_pretrained(model),
        tokenizer,
        None,
        chat_template=tokenizer.chat_template,
        **{name: settings[name] for name in (*_NAMES, *_IDS) if name in settings},
    )
    processor.audio_tokenizer = audio_tokenizer
    return processor


# From the model's own examples.
_SYSTEM, _SCENE = "Generate audio following instruction.", "Audio is recorded from a quiet room."


def make_conversation(request: GenerateRequest, scene_text: str | None = None) -> list[dict[str, object]]:
    """Return a request's messages for the processor's chat template.

    A system message describes the scene, else `scene_text`, and the voices of unknown words are in it. One with words
    is a turn that was spoken before. Raises `InputError` for a request that the model cannot speak.
    """
    described, words = text_to_speak(request)
    scene = described or (Part("text", scene_text or _SCENE),)
    turns: list[tuple[str, tuple[Part, ...]]] = []
    for index, voice in enumerate(request.speech.voices):
        if voice.text:
            tag = f"[SPEAKER{index}] " if len(request.speech.voices) > 1 else ""
            turns += [("user", (Part("text", tag + voice.text),)), ("assistant", (Part("audio"),))]
        else:
            scene = (*scene, Part("text", f"SPEAKER{index}:"), Part("audio"))
    text = _tag_speaker(words, request.speech.speaker)
    turns = [("system", (Part("text", _SYSTEM),)), ("scene", scene), *turns, ("user", (Part("text", text),))]
    return [
        {"role": role, "content": [{"type": part.type, "text": part.text} for part in parts]} for role, parts in turns
    ]


def _tag_speaker(text: str, speaker: str | None) -> str:
    """Tag a text with its speaker, if one is named. Raises `InputError` for one that the model does not have."""
    if speaker is None:
        return text
    number = speaker_for(speaker, SPEAKERS)
    if number not in SPEAKERS:
        raise InputError(f"unknown speaker `{number}`", hint=f"this model's speakers are {', '.join(SPEAKERS)}")
    if "[SPEAKER" in text:
        raise InputError("a text with turns names its speakers itself", hint="drop the speaker")
    return f"[SPEAKER{number}] {text}"


def make_inputs(processor: Any, request: GenerateRequest, scene_text: str | None = None) -> Any:
    """Return the inputs of transformers' `processor` for a request; `scene_text` describes the scene by default.

    Raises `InputError` for one that the model cannot speak.
    """
    if request.text.raw:
        return _raw_inputs(processor, request)
    check_voices(request.speech.voices, CLONING)
    conversation = make_conversation(request, scene_text)
    text = processor.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    rate = processor.feature_extractor.sampling_rate
    # In the order of the conversation: those of the scene first.
    voices = sorted(request.speech.voices, key=lambda voice: bool(voice.text))
    audio = [resample(voice.samples, voice.sample_rate, rate) for voice in voices] or None
    return processor(text=text, audio=audio, sampling_rate=rate, add_special_tokens=False, return_tensors="pt")


def _raw_inputs(processor: Any, request: GenerateRequest) -> Any:
    if request.speech.speaker is not None or request.speech.voices:
        what = "voices" if request.speech.voices else "speaker"
        raise InputError(f"a raw prompt has no {what} beside it", hint=f"drop the {what}, or `raw`")
    inputs = processor.tokenizer(request.prompt, return_tensors="pt")
    ids = inputs["input_ids"][0].tolist()
    if ids[-1:] != [processor.audio_bos_token_id]:
        raise InputError(
            "a raw prompt ends where the sound begins", hint=f"put `{processor.audio_bos_token}` at its end"
        )
    num_codebooks = processor.audio_tokenizer.config.num_quantizers
    if len(ids) < num_codebooks:
        raise InputError(f"a raw prompt has as many tokens as there are codebooks, {num_codebooks}, or more")
    if {processor.audio_token_id, processor.audio_delay_token_id} & set(ids):
        raise InputError(f"a raw prompt has no sound in place of `{processor.audio_token}`")
    return inputs
