"""Requests for an omni model: text, audio and images, alone and together."""

from __future__ import annotations

import numpy as np

from omni_cli.requests.contents import Media
from omni_cli.requests.outputs import GenerateRequest

# Of ten, which would be most of the time that a test of the chain takes.
FEW_STEPS = "token2wav.num_inference_steps=4"
BRIEF_SPEECH = (FEW_STEPS, "talker.sampling.max_tokens=160")


def tone(seconds: float, hertz: float) -> tuple[np.ndarray, int]:
    times = np.arange(int(seconds * 16_000)) / 16_000
    return (0.3 * np.sin(2 * np.pi * hertz * times)).astype(np.float32), 16_000


def make_image(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(height * width).integers(0, 256, (height, width, 3), dtype=np.uint8)


def requests() -> list[GenerateRequest]:
    return [
        GenerateRequest("text", "hello", seed=1),
        GenerateRequest("longer", "Tell me a story about the rain on a tin roof, and then another one.", seed=2),
        GenerateRequest("audio", "What do you hear?", media=Media(audio=(tone(1.3, 440.0),)), seed=3),
        GenerateRequest("image", "What is this?", media=Media(images=(make_image(56, 84),)), seed=4),
        GenerateRequest(
            "both", "And now?", media=Media(audio=(tone(0.7, 220.0),), images=(make_image(84, 56),)), seed=5
        ),
        GenerateRequest("two", "Which is louder?", media=Media(audio=(tone(0.7, 220.0), tone(0.903, 900.0))), seed=6),
        GenerateRequest("short", "a", seed=7),
        GenerateRequest("images", "Compare.", media=Media(images=(make_image(56, 56), make_image(112, 56))), seed=8),
    ]
