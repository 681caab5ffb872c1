"""The requests of `omni verify` without `--requests`: a few of each modality, made here, under the code's licence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from omni_cli.requests.capabilities import Capabilities
from omni_cli.requests.contents import Media, StageIO, TranscriptionOptions, Video
from omni_cli.requests.media.audio import read_speech
from omni_cli.requests.outputs import GenerateRequest

MAX_TOKENS = 24
MAX_TOKENS_OF_LATER_STAGES = 64
_RATE = 16_000
_TEXTS = ("hello", "Write three short sentences about the sea.", "The capital of France is")
_LONG_TEXT = "Tell me everything that you know about the sea, its shores, its ships and its weather. "
_SCENES = ("a red lighthouse at dusk", "two boats on a calm sea")


def default_requests(capabilities: Capabilities) -> tuple[GenerateRequest, ...]:
    """Return the requests for a profile. Those with media that the model turns out not to take are dropped."""
    if capabilities.call is not None or "image" in capabilities.modalities:
        return _of_pipeline(capabilities)
    sampling = {"max_tokens": MAX_TOKENS} if "max_tokens" in capabilities.fields else {}
    hears = capabilities.transcribes or (capabilities.hears and len(capabilities.modalities) == 1)
    # With a language, Qwen3-ASR writes nothing but the transcript.
    options = TranscriptionOptions(language="en", asked=True)
    speech = tuple(
        GenerateRequest(f"speech {number}", media=Media(audio=(sound,)), transcription=options, sampling=sampling)
        for number, sound in enumerate(read_speech() if hears else ())
    )
    if capabilities.transcribes:
        return speech
    texts = [GenerateRequest(f"text {number}", text) for number, text in enumerate(_TEXTS)]
    media = {
        "image": Media(images=(draw_image(0),)),
        "two images": Media(images=(draw_image(1), draw_image(2))),
        "audio": Media(audio=(draw_sound(0),)),
        "video": Media(videos=(draw_video(0),)),
    }
    taken = {name: files for name, files in media.items() if name.split()[-1].rstrip("s") in capabilities.fields}
    others = [GenerateRequest(name, "What is it?", media=files) for name, files in taken.items()]
    return tuple(replace(request, sampling=sampling) for request in (*texts, *others, *speech))


def _of_pipeline(capabilities: Capabilities) -> tuple[GenerateRequest, ...]:
    needed = () if capabilities.call is None else capabilities.needed_files
    media = Media(
        images=(draw_image(0),) if "image" in needed else (),
        videos=(draw_video(0),) if "video" in needed else (),
    )
    stage = StageIO(wants_frames=True)
    prompts = _SCENES if "prompt" in capabilities.fields else (None, None)
    requests = [
        GenerateRequest(f"scene {number}", prompt, media=media, stage=stage, seed=number)
        for number, prompt in enumerate(prompts)
    ]
    if capabilities.call is None and "image" in capabilities.fields:
        requests.append(GenerateRequest("edit", _SCENES[0], media=Media(images=(draw_image(0),))))
    return tuple(requests)


def draw_image(number: int, height: int = 96, width: int = 128) -> np.ndarray:
    """Draw a disc on a gradient, uint8 RGB (height, width, 3)."""
    rows, columns = np.mgrid[0:height, 0:width]
    image = np.stack([255 * columns / width, 255 * rows / height, np.full((height, width), 60 + 50 * number)], axis=-1)
    disc = (rows - height / 2) ** 2 + (columns - width * (1 + number) / 4) ** 2 < (height / 4) ** 2
    image[disc] = (250 - 90 * number, 40 + 80 * number, 90)
    return image.astype(np.uint8)


def draw_sound(number: int, seconds: float = 1.0, rate: int = _RATE) -> tuple[np.ndarray, int]:
    """Make two tones, one rising, float32 (num_samples,), with the sample rate."""
    phase = 2 * np.pi * np.arange(round(seconds * rate)) / rate
    samples = 0.2 * np.sin((220 + 110 * number) * phase) + 0.1 * np.sin((300 + 30 * phase) * phase)
    return samples.astype(np.float32), rate


def draw_video(number: int, num_frames: int = 8) -> Video:
    """Draw a disc that grows."""
    frames = np.stack([draw_image(number, 64, 64 + 4 * frame)[:, :64] for frame in range(num_frames)])
    return Video(frames, 4.0, num_frames, tuple(range(num_frames)))


def longer(request: GenerateRequest) -> GenerateRequest:
    """Return the request with a prompt of several hundred tokens, if it has one."""
    return replace(request, prompt=f"{_LONG_TEXT * 8}{request.prompt}") if request.prompt else request


def with_media(request: GenerateRequest, field: str, *items: Any) -> GenerateRequest:
    """Return the request with other images, sounds or videos in a field of its media."""
    changed: dict[str, Any] = {field: items}
    return replace(request, media=replace(request.media, **changed))


def another_medium(request: GenerateRequest, field: str) -> Any:
    """Make another image, sound or video of the size of a request's first one."""
    match field:
        case "images":
            return draw_image(5, *request.media.images[0].shape[:2])
        case "audio":
            samples, rate = request.media.audio[0]
            return draw_sound(5, len(samples) / rate, rate)
    return replace(request.media.videos[0], frames=request.media.videos[0].frames[::-1].copy())
