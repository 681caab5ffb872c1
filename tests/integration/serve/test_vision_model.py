"""A vision-language model without a profile, over HTTP: images and video in chats, and what it does not take."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from support.media_samples import clip, image_of, write_lossless
from support.omni_server import OmniServer
from support.references import LanguageReference
from support.tiny_models import qwen3_vl

from omni_cli.requests.contents import Video
from omni_cli.requests.encoding import encode_png, encode_wav

MAX_TOKENS = 12
CLIP = clip(2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return qwen3_vl(tmp_path_factory.mktemp("models") / "qwen3_vl")


@pytest.fixture(scope="module")
def server(folder: Path, start_server: Any) -> OmniServer:
    return start_server("--model", str(folder))


def data_url(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def test_images_and_video_go_in(server: OmniServer, folder: Path) -> None:
    parts = [
        {"type": "image_url", "image_url": {"url": data_url("image/png", encode_png(image_of(1)))}},
        {"type": "video_url", "video_url": {"url": data_url("video/x-matroska", write_lossless(CLIP))}},
        {"type": "text", "text": "compare them"},
    ]
    answer = server.client().chat.completions.create(
        model=folder.name,
        messages=[{"role": "user", "content": parts}],
        max_tokens=MAX_TOKENS,
        temperature=0,
        extra_body={"return_token_ids": True},
    )
    expected = LanguageReference(folder).tokens("compare them", MAX_TOKENS, samples=True, image=[1], video=[2])
    assert answer.choices[0].token_ids == expected


def test_the_frames_of_a_video_are_chosen_as_a_client_asks(server: OmniServer, folder: Path) -> None:
    def prompt_tokens(options: dict[str, float], video: Video = CLIP) -> int:
        url = data_url("video/x-matroska", write_lossless(video))
        messages = [{"role": "user", "content": [{"type": "video_url", "video_url": {"url": url}}]}]
        answer = server.client().chat.completions.create(
            model=folder.name, messages=messages, max_tokens=1, extra_body={"media_io_kwargs": {"video": options}}
        )
        return answer.usage.prompt_tokens

    # Two frames are one row of patches, after the time at which it is seen; the clip has six.
    four, two = prompt_tokens({}), prompt_tokens({"max_frames": 2})
    assert four > two
    with pytest.raises(openai.BadRequestError, match=r"takes: \d+ tokens.*; it has 768 frames of video"):
        prompt_tokens({}, clip(2, 1000, 2.0))
    for name in ("nframes", "num_frames"):
        with pytest.raises(openai.BadRequestError, match=f"`media_io_kwargs.video.{name}` has no effect"):
            prompt_tokens({name: 3})


def test_a_medium_that_it_does_not_take_is_refused(server: OmniServer, folder: Path) -> None:
    sound = base64.b64encode(encode_wav(np.zeros(1600, np.float32), 16000)).decode()
    part = {"type": "input_audio", "input_audio": {"data": sound, "format": "wav"}}
    with pytest.raises(openai.BadRequestError, match="takes no audio: this model takes text, images and video"):
        server.client().chat.completions.create(model=folder.name, messages=[{"role": "user", "content": [part]}])
