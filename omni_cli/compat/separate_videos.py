"""Let vLLM process the videos of Qwen3-VL.

vLLM 0.30 passes them to the model's processor one by one, and then the text with placeholders and no videos, which
transformers 5.23 rejects ("Found 1 <|video_pad|> tokens in the text but no videos were passed").
"""

from __future__ import annotations

from typing import Any


def accept_separate_videos() -> None:
    """Skip that check of Qwen3-VL's processor; calling it again does nothing."""
    from transformers import Qwen3VLProcessor

    check = Qwen3VLProcessor.validate_inputs
    if check.__module__ == __name__:
        return

    def validate_inputs(self: Any, images: Any = None, text: Any = None, videos: Any = None, **others: Any) -> None:
        if videos is None and text is not None:
            text = [sample.replace(self.video_token, "") for sample in text]
        check(self, images=images, text=text, videos=videos, **others)

    Qwen3VLProcessor.validate_inputs = validate_inputs
