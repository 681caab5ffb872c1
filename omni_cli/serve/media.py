"""Decode images, video and audio inside a request, within the limits."""

from __future__ import annotations

import asyncio
import base64
import binascii
import math
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import BinaryIO, TypeVar
from urllib.parse import unquote, unquote_to_bytes

import numpy as np

from omni_cli.core.errors import InputError
from omni_cli.requests.contents import Video
from omni_cli.requests.media.reading import ChooseFrames, MediaReader, Requester, in_memory, media_pool
from omni_cli.serve.errors import APIError
from omni_cli.serve.limits import Limits
from omni_cli.serve.media_urls import Downloads, MediaPrefix

# A type and its parameters do not matter, since the content alone decides.
_DATA_URL = re.compile(r"data:[^,]*?(;base64)?,", re.ASCII | re.IGNORECASE)
_URL = re.compile(r"(data|https?):", re.ASCII | re.IGNORECASE)
T = TypeVar("T")


async def decode_media(
    decode: Callable[[MediaDecoder], T], limits: Limits, threads: Executor, prefixes: Sequence[MediaPrefix]
) -> T:
    """Call `decode` in one of the threads; cancelled, end the decoding. URLs are fetched below `prefixes` only."""
    requester, downloads = Requester(), Downloads(prefixes, limits)
    decoder = MediaDecoder(limits, requester, downloads)
    try:
        return await asyncio.get_running_loop().run_in_executor(threads, decode, decoder)
    except asyncio.CancelledError:
        downloads.cancel()
        media_pool().cancel(requester)
        raise


class MediaDecoder:
    """Decodes the media of one request and limits their total. For use in a thread.

    `notes` are sentences on what decoding changed; `choose` returns the frames of videos that a language model sees.
    """

    def __init__(self, limits: Limits, requester: Requester, downloads: Downloads) -> None:
        self.notes: list[str] = []
        self.choose: ChooseFrames | None = None
        self._downloads = downloads
        self._reader = MediaReader(self.notes.append, requester)
        self._max_cpu_s = limits.max_decode_s
        self._pixels_left = limits.max_image_pixels
        self._video_pixels_left = limits.max_video_pixels
        self._audio_s_left = limits.max_audio_s

    def image(self, url: str, param: str) -> np.ndarray:
        """Decode the image of a URL to uint8 RGB (height, width, 3); raises `APIError` (400)."""
        return self._pixels(self._reader.image, self._content(url, "image", param), "image", param)

    def image_file(self, file: BinaryIO, param: str) -> np.ndarray:
        """Decode an image file to uint8 RGB (height, width, 3); raises `APIError` (400)."""
        return self._pixels(self._reader.image, file.read(), "image", param)

    def mask_file(self, file: BinaryIO, param: str) -> np.ndarray:
        """Decode a mask to uint8 RGB (height, width, 3), white where it is fully transparent; raises `APIError` (400).

        A mask that leaves nothing to paint is refused: it was probably drawn in black and white.
        """
        painted = self._pixels(self._reader.alpha, file.read(), "mask", param) == 0
        if not painted.any():
            message = f"the mask in `{param}` has no fully transparent pixel, so it leaves nothing to edit"
            raise APIError(400, message, code="invalid_mask", param=param)
        return np.repeat(painted[:, :, None], 3, axis=2) * np.uint8(255)

    def _pixels(self, decode: Callable[..., np.ndarray], content: bytes, what: str, param: str) -> np.ndarray:
        with _open(content, what, param) as file:
            pixels = decode(file, f"{what} in `{param}`", max_pixels=self._pixels_left)
        self._pixels_left -= pixels.shape[0] * pixels.shape[1]
        return pixels

    def video(self, url: str, param: str) -> Video:
        """Decode the frames of a URL's video; raises `APIError` (400)."""
        return self._video(self._content(url, "video", param), param, self.choose)

    def video_file(self, file: BinaryIO, param: str) -> Video:
        """Decode all frames of a video file; raises `APIError` (400)."""
        return self._video(file.read(), param, None)

    def _video(self, content: bytes, param: str, choose: ChooseFrames | None) -> Video:
        with _open(content, "video", param) as file:
            video = self._reader.video(
                file,
                f"video in `{param}`",
                choose=choose,
                max_pixels=self._video_pixels_left,
                max_cpu_s=self._max_cpu_s,
            )
        self._video_pixels_left -= video.frames.size // 3
        return video

    def audio(self, data: str, param: str, *, max_s: float = math.inf) -> tuple[np.ndarray, int]:
        """Decode a file of at most `max_s` seconds, in base64 or by URL, to float32 mono (num_samples,) and its rate.

        Raises `APIError` (400).
        """
        content = self._content(data, "audio", param) if _URL.match(data) else _from_base64(data, param)
        return self._audio(content, param, max_s)

    def audio_file(self, file: BinaryIO, param: str, *, max_s: float = math.inf) -> tuple[np.ndarray, int]:
        """Decode a sound file to (float32 mono (num_samples,), sample rate in Hz); raises `APIError` (400)."""
        return self._audio(file.read(), param, max_s)

    def _audio(self, content: bytes, param: str, max_s: float) -> tuple[np.ndarray, int]:
        max_s = min(max_s, self._audio_s_left)
        with _open(content, "audio", param) as file:
            samples, sample_rate = self._reader.audio(file, f"audio in `{param}`", max_s=max_s)
        self._audio_s_left -= len(samples) / sample_rate
        return samples, sample_rate

    def _content(self, url: str, what: str, param: str) -> bytes:
        match = _DATA_URL.match(url)
        if match is None:
            try:
                return self._downloads.get(url)
            except InputError as error:
                raise APIError(400, f"`{param}` {error.message}", code=f"invalid_{what}_url", param=param) from error
        if match[1]:
            return _from_base64(unquote(url[match.end() :]), param)
        return unquote_to_bytes(url[match.end() :])


@contextmanager
def _open(content: bytes, what: str, param: str) -> Iterator[BinaryIO]:
    """Yield `content` as a file; what its reader refuses is an `APIError` (400)."""
    try:
        with in_memory(content) as file:
            yield file
    except InputError as error:
        raise APIError(400, error.message, code=f"invalid_{what}", param=param) from error


def _from_base64(text: str, param: str) -> bytes:
    """Decode base64, as browsers do also with line breaks or without its padding."""
    text = "".join(text.split()).rstrip("=")
    try:
        content = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError) as error:  # ValueError: not ASCII
        raise APIError(400, f"`{param}` is not valid base64", code="invalid_base64", param=param) from error
    if not content:
        raise APIError(400, f"`{param}` is empty", code="invalid_base64", param=param)
    return content
