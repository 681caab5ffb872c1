"""Common parts of the families' references: models of transformers that are led through an engine's tokens."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image

from omni_cli.config.schema import ARStageConfig, EngineConfig
from omni_cli.core.machine import read_memory
from omni_cli.models.forcing import replace_attribute
from omni_cli.models.scores import EngineOutput, Expected, NoReferenceError, TokenScores, Way
from omni_cli.requests.encoding import resample
from omni_cli.requests.outputs import GenerateRequest, Message, Part, prompt_message


class FamilyReference(Protocol):
    """A family's reference: a class that loads a checkpoint in one `Way` and returns what it expects of requests."""

    def __init__(self, folder: Path, config: EngineConfig, way: Way) -> None:
        """Load the model. Raises `NoReferenceError` for settings that it cannot follow."""

    def expected(self, output: EngineOutput) -> Expected:
        """Run one request with the engine's tokens. Raises `NoReferenceError` for a request that it cannot run.

        A reference of speech recognition has `tokens_of(request, text)`, too, for servers that tell no tokens.
        """


@dataclass(frozen=True)
class SpokenText:
    """The speech of a text: float32 samples (num_samples,), and of each step, the end included, its frame or its token.

    `codes` are frames of several codebooks, None without such. `answer` has the tokens of a text that the model writes
    itself. `num_input_tokens` are those of the first stage's prompt.
    """

    waveform: np.ndarray
    num_input_tokens: int
    codes: tuple[tuple[int, ...], ...] | None = None
    tokens: tuple[int, ...] = ()
    answer: tuple[int, ...] = ()

    def expected(self, config: EngineConfig, output: EngineOutput, *scores: TokenScores) -> Expected:
        """Return what is expected of the first stages' tokens, their `scores`, and of the last one's sound."""
        names = [stage.name for stage in config.stages]
        by_stage = dict(zip(names, scores, strict=False))
        arrays = dict.fromkeys(output.arrays, self.waveform)
        return Expected(by_stage, arrays, names[-1], num_input_tokens=self.num_input_tokens)


def as_samples(waveform: torch.Tensor) -> np.ndarray:
    """Return the samples of a waveform of any shape and type as float32 (num_samples,)."""
    samples: np.ndarray = waveform.reshape(-1).float().cpu().numpy()
    return samples


def get_device() -> str:
    """Return the device of references, and of their inputs: a model's own is none if weights are read as it runs."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def load_model(
    model_class: Any, folder: Path, way: Way, config: EngineConfig, *, attention_of: str | None = None
) -> Any:
    """Load a model of transformers in the given way, for inference.

    `attention_of` is the part of the configuration whose attention is chosen, if the other parts have none.
    """
    attention = way.attention if attention_of is None else {attention_of: way.attention}
    options: dict[str, Any] = {"dtype": getattr(torch, way.dtype), "attn_implementation": attention}
    if way.dtype == "float64":
        options["experts_implementation"] = "eager"  # grouped matrix products have no float64
    if config.trust_remote_code:
        options["trust_remote_code"] = True
    if way.low_memory:
        # The others are read from the checkpoint's files, or, where these are no safetensors, from copies.
        resident = {"cpu": read_memory().available_bytes // 2}
        copies = tempfile.mkdtemp(prefix="weights-")
        return model_class.from_pretrained(
            folder, **options, device_map="auto", max_memory=resident, offload_folder=copies
        ).eval()
    return model_class.from_pretrained(folder, **options).eval().to(get_device())


def load_adapters(model: Any, stage: ARStageConfig) -> None:
    """Load a stage's LoRA adapters into a model of transformers.

    Raises `NoReferenceError` without PEFT, and for an adapter whose modules transformers names otherwise.
    """
    if stage.lora and importlib.util.find_spec("peft") is None:
        raise NoReferenceError("a reference with LoRA adapters needs peft: `pip install 'omni-cli[lora]'`")
    for adapter in stage.adapters:
        loaded = model.load_adapter(str(adapter.path), adapter_name=adapter.module_name)
        if unknown := sorted(loaded.unexpected_keys):
            raise NoReferenceError(f"{type(model).__name__} has no `{unknown[0]}`, of the adapter `{adapter.name}`")


def use_adapter(model: Any, stage: ARStageConfig, request: GenerateRequest) -> None:
    """Switch a model to the adapter of a request, if its stage has any."""
    name = stage.choose_adapter(request.lora)
    if name is not None:
        model.enable_adapters()
        model.set_adapter(next(adapter.module_name for adapter in stage.adapters if adapter.name == name))
    elif stage.lora:
        model.disable_adapters()


def check_whole(way: Way) -> None:
    """Raise `NoReferenceError` for a way that reads weights by layer, which diffusers' models cannot do on a CPU."""
    if way.low_memory:
        raise NoReferenceError("`--low-memory` is for references in transformers; one in diffusers is read whole")


def noise_in(dtype: torch.dtype, *, on_host: bool = False) -> AbstractContextManager[None]:
    """Draw noise in `dtype` and then convert it: the numbers that torch draws depend on the type.

    They depend on the device, too; `on_host` is for models whose engine draws there.
    """
    draw = torch.randn

    def randn(*size: Any, **options: Any) -> torch.Tensor:
        wanted = options.pop("dtype", None) or torch.get_default_dtype()
        device = options.pop("device", None)
        drawn = draw(*size, dtype=dtype, device="cpu" if on_host else device, **options)
        return drawn.to(device, wanted)

    return replace_attribute(torch, "randn", randn)


_LIMITS = {
    "max_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "repetition_penalty": "repetition_penalty",
}


def get_limits(config: EngineConfig, stage: str, prefix: str = "") -> Mapping[str, Any]:
    """Return the settings of an AR stage that change a greedy answer, as arguments of `generate`.

    Those that are not set are left to the checkpoint's generation_config.json, as in the engine.
    """
    found = config.stage(stage)
    assert isinstance(found, ARStageConfig)
    settings = found.sampling.set_values()
    return {prefix + name: settings[own] for own, name in _LIMITS.items() if own in settings}


def get_messages(request: GenerateRequest, system_prompt: str | None) -> list[dict[str, Any]]:
    """Return a conversation as transformers' chat templates take it; media come before a prompt."""
    messages = request.messages or (prompt_message(request),)
    if system_prompt is not None and messages[0].role != "system":
        messages = (Message("system", (Part("text", system_prompt),)), *messages)
    return [{"role": message.role, "content": _content(message)} for message in messages]


def _content(message: Message) -> object:
    if all(part.type == "text" for part in message.parts):
        return "".join(part.text for part in message.parts)
    return [{"type": part.type, part.type: part.text} for part in message.parts]


def processor_inputs(processor: Any, request: GenerateRequest, system_prompt: str | None = None) -> Any:
    """Return a model's inputs for a request, from the checkpoint's tokenizer or processor.

    Raises `NoReferenceError` for media that the model does not take.
    """
    parts = {"image": request.media.images, "audio": request.media.audio, "video": request.media.videos}
    takes = {"image": "image_processor", "audio": "feature_extractor", "video": "video_processor"}
    # Granite Speech's processor has another name for what hears.
    takes["audio"] = "audio_processor" if hasattr(processor, "audio_processor") else takes["audio"]
    for medium, items in parts.items():
        if items and getattr(processor, takes[medium], None) is None:
            raise NoReferenceError(f"this model takes no {medium}")
    special: dict[str, Any] = {}
    if request.text.raw or getattr(processor, "chat_template", None) is None:
        text = request.prompt
    else:
        messages = get_messages(request, system_prompt)
        text = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        special["add_special_tokens"] = False
    media: dict[str, Any] = {}
    if request.media.images:
        media["images"] = [Image.fromarray(image) for image in request.media.images]
    if request.media.audio:
        rate = getattr(processor, takes["audio"]).sampling_rate
        media["audio"] = [resample(samples, own_rate, rate) for samples, own_rate in request.media.audio]
        media["sampling_rate"] = rate
    if request.media.videos:
        media |= _videos(request)
    return processor(text=[text], return_tensors="pt", **special, **media)


def _videos(request: GenerateRequest) -> dict[str, Any]:
    """Return the processor's arguments for videos whose frames have been sampled already."""
    metadata = [
        {"total_num_frames": video.total_num_frames, "fps": video.fps, "frames_indices": list(video.frames_indices)}
        for video in request.media.videos
    ]
    frames = [video.frames for video in request.media.videos]
    samples = any(video.do_sample_frames for video in request.media.videos)
    return {"videos": frames, "video_metadata": metadata, "do_sample_frames": samples}
