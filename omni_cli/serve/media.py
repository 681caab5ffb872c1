"""Decode images, video and audio inside a request, within the limits."""

from __future__ import annotations

import base64
import binascii
import io
import re
from collections.abc import Callable
from typing import BinaryIO

import numpy as np

from omni_cli.errors import InputError
from omni_cli.inputs.audio import decode_audio
from omni_cli.inputs.images import decode_alpha, decode_image
from omni_cli.inputs.video import MAX_NUM_FRAMES, decode_video
from omni_cli.outputs import Video
from omni_cli.serve.errors import APIError
from omni_cli.serve.limits import Limits

_DATA_URL = re.compile(r"data:[\w.+-]+/[\w.+-]+(;[\w.+-]+=[^;,]*)*;base64,", re.ASCII)


class MediaDecoder:
    """Decodes the media of one request and limits their total. For use in a thread."""

    def __init__(self, limits: Limits) -> None:
        self._pixels_left = limits.max_image_pixels
        self._video_pixels_left = limits.max_video_pixels
        self._audio_s_left = limits.max_audio_s

    def image(self, url: str, param: str) -> np.ndarray:
        """Decode a base64 data URL to uint8 RGB (height, width, 3); raises `APIError` (400)."""
        return self.image_file(io.BytesIO(_from_data_url(url, param, "image", "image/png")), param)

    def image_file(self, file: BinaryIO, param: str) -> np.ndarray:
        """Decode an image file to uint8 RGB (height, width, 3); raises `APIError` (400)."""
        return self._pixels(decode_image, file, "image", param)

    def mask_file(self, file: BinaryIO, param: str) -> np.ndarray:
        """Decode a mask to uint8 RGB (height, width, 3), white where it is fully transparent; raises `APIError` (400).

        A mask that leaves nothing to paint is refused: it was probably drawn in black and white.
        """
        painted = self._pixels(decode_alpha, file, "mask", param) == 0
        if not painted.any():
            message = f"the mask in `{param}` has no fully transparent pixel, so it leaves nothing to edit"
            raise APIError(400, message, code="invalid_mask", param=param)
        return np.repeat(painted[:, :, None], 3, axis=2) * np.uint8(255)

    def _pixels(self, decode: Callable[..., np.ndarray], file: BinaryIO, what: str, param: str) -> np.ndarray:
        try:
            pixels = decode(file, f"{what} in `{param}`", _no_warning, self._pixels_left)
        except InputError as error:
            raise APIError(400, error.message, code=f"invalid_{what}", param=param) from error
        self._pixels_left -= pixels.shape[0] * pixels.shape[1]
        return pixels

    def video(self, url: str, param: str) -> Video:
        """Decode a base64 data URL to a video's frames; raises `APIError` (400)."""
        return self.video_file(io.BytesIO(_from_data_url(url, param, "video", "video/mp4")), param, MAX_NUM_FRAMES)

    def video_file(self, file: BinaryIO, param: str, max_num_frames: int | None = None) -> Video:
        """Decode a video file, by default all of its frames; raises `APIError` (400)."""
        name, limit = f"video in `{param}`", self._video_pixels_left
        try:
            video = decode_video(file, name, _no_warning, limit, max_num_frames=max_num_frames)
        except InputError as error:
            raise APIError(400, error.message, code="invalid_video", param=param) from error
        self._video_pixels_left -= video.frames.size // 3
        return video

    def audio(self, data: str, param: str) -> tuple[np.ndarray, int]:
        """Decode a file in base64 to (float32 mono (num_samples,), sample rate in Hz); raises `APIError` (400)."""
        content = _from_base64(data, param)
        try:
            samples, sample_rate = decode_audio(io.BytesIO(content), f"audio in `{param}`", self._audio_s_left)
        except InputError as error:
            raise APIError(400, error.message, code="invalid_audio", param=param) from error
        self._audio_s_left -= len(samples) / sample_rate
        return samples, sample_rate


def _from_data_url(url: str, param: str, what: str, example: str) -> bytes:
    found = _DATA_URL.match(url)
    if found is None:
        raise APIError(
            400,
            f"`{param}` must be `data:{example};base64,...`: this server does not fetch URLs, so send the {what}",
            code=f"invalid_{what}_url",
            param=param,
        )
    return _from_base64(url[found.end() :], param)


def _from_base64(text: str, param: str) -> bytes:
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:  # ValueError: not ASCII
        raise APIError(400, f"`{param}` is not valid base64", code="invalid_base64", param=param) from error
    if not content:
        raise APIError(400, f"`{param}` is empty", code="invalid_base64", param=param)
    return content


def _no_warning(_message: str) -> None:
    """Ignore the warning: the first frame of an animation is its image, and of a video only the frames are used."""
