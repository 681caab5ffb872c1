"""Fetch and decode the images, video and audio of a request, within the limits."""

from __future__ import annotations

import asyncio
import base64
import binascii
import io
import math
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import BinaryIO, TypeVar
from urllib.parse import unquote, unquote_to_bytes, urljoin

import aiohttp
import numpy as np

from omni_cli.core.errors import InputError
from omni_cli.requests.contents import Video
from omni_cli.requests.media.reading import ChooseFrames, MediaReader, Requester, in_memory, media_pool
from omni_cli.serve.errors import APIError
from omni_cli.serve.limits import MAX_AUDIO_S, MAX_SPEECH_S, MIB, Limits
from omni_cli.serve.sites import MediaPrefix

# A type and its parameters do not matter, since the content alone decides.
_DATA_URL = re.compile(r"data:[^,]*?(;base64)?,", re.ASCII | re.IGNORECASE)
_URL = re.compile(r"(data|https?):", re.ASCII | re.IGNORECASE)
_MAX_REDIRECTS = 5
_REDIRECTS = (301, 302, 303, 307, 308)
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
        self._audio_s_left = limits.max_audio_s or MAX_AUDIO_S
        self._max_speech_s = limits.max_audio_s or MAX_SPEECH_S

    def image(self, source: str | BinaryIO, param: str) -> np.ndarray:
        """Decode an image to uint8 RGB (height, width, 3); raises `APIError` (400)."""
        return self._pixels(self._reader.image, source, "image", param)

    def mask(self, file: BinaryIO, param: str) -> np.ndarray:
        """Decode a mask to uint8 RGB (height, width, 3), white where it is fully transparent; raises `APIError` (400).

        A mask that leaves nothing to paint is refused: it was probably drawn in black and white.
        """
        painted = self._pixels(self._reader.alpha, file, "mask", param) == 0
        if not painted.any():
            message = f"the mask in `{param}` has no fully transparent pixel, so it leaves nothing to edit"
            raise APIError(400, message, code="invalid_mask", param=param)
        return np.repeat(painted[:, :, None], 3, axis=2) * np.uint8(255)

    def video(self, source: str | BinaryIO, param: str) -> Video:
        """Decode the frames that `choose` returns, by default all; raises `APIError` (400)."""
        with self._open(source, "video", param) as file:
            video = self._reader.video(
                file,
                f"video in `{param}`",
                choose=self.choose,
                max_pixels=self._video_pixels_left,
                max_cpu_s=self._max_cpu_s,
            )
        self._video_pixels_left -= video.frames.size // 3
        return video

    def audio(self, source: str | BinaryIO, param: str, *, max_s: float = math.inf) -> tuple[np.ndarray, int]:
        """Decode a sound of at most `max_s` seconds to (float32 mono (num_samples,), sample rate in Hz).

        Raises `APIError` (400).
        """
        max_s = min(max_s, self._audio_s_left)
        with self._open(source, "audio", param) as file:
            samples, sample_rate = self._reader.audio(file, f"audio in `{param}`", max_s=max_s)
        self._audio_s_left -= len(samples) / sample_rate
        return samples, sample_rate

    def speech(self, file: BinaryIO, param: str) -> tuple[np.ndarray, int]:
        """Decode a recording to transcribe, as `audio`; raises `APIError` (400)."""
        with self._open(file, "audio", param) as content:
            return self._reader.speech(content, f"audio in `{param}`", max_s=self._max_speech_s)

    def _pixels(self, decode: Callable[..., np.ndarray], source: str | BinaryIO, what: str, param: str) -> np.ndarray:
        with self._open(source, what, param) as file:
            pixels = decode(file, f"{what} in `{param}`", max_pixels=self._pixels_left)
        self._pixels_left -= pixels.shape[0] * pixels.shape[1]
        return pixels

    @contextmanager
    def _open(self, source: str | BinaryIO, what: str, param: str) -> Iterator[BinaryIO]:
        """Open an uploaded file, or what a URL names, for a decoder; its `InputError` becomes an `APIError` (400)."""
        try:
            if not isinstance(source, str) and source.seek(0, io.SEEK_END) > MIB:
                yield source  # on disk
                return
            content = self._content(source, what, param) if isinstance(source, str) else _read_all(source)
            if not content:
                raise InputError(f"the {what} in `{param}` is empty (0 bytes)")
            with in_memory(content) as file:
                yield file
        except InputError as error:
            too_long = f"the audio in `{param}` is longer than {self._max_speech_s:g} s, the maximum"
            message = error.in_one_line.replace(too_long, f"{too_long} of this server's `--max-audio-seconds`")
            raise APIError(400, message, code=f"invalid_{what}", param=param) from error

    def _content(self, url: str, what: str, param: str) -> bytes:
        match = _DATA_URL.match(url)
        if match is None and what == "audio" and not _URL.match(url):
            return _from_base64(url, param)  # as in OpenAI's API
        if match is None:
            try:
                return self._downloads.get(url)
            except InputError as error:
                raise APIError(400, f"`{param}` {error.message}", code=f"invalid_{what}_url", param=param) from error
        if match[1]:
            return _from_base64(unquote(url[match.end() :]), param)
        return unquote_to_bytes(url[match.end() :])


def _read_all(file: BinaryIO) -> bytes:
    file.seek(0)
    return file.read()


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


class Downloads:
    """Downloads for one request: together they may be as large as a body, and take as long as one to arrive.

    To be created in the event loop, and used in one thread.
    """

    def __init__(self, prefixes: Sequence[MediaPrefix], limits: Limits) -> None:
        self._prefixes = prefixes
        self._loop = asyncio.get_running_loop()
        self._limits = limits
        self._bytes_left = limits.max_body_bytes
        self._seconds_left = limits.body_timeout_s
        self._is_cancelled = False
        self._task: asyncio.Task[object] | None = None

    def get(self, url: str) -> bytes:
        """Raises `InputError` for a URL that is not allowed, or cannot be fetched within the limits."""
        return asyncio.run_coroutine_threadsafe(self._get(url), self._loop).result()

    def cancel(self) -> None:
        """End the current download, and every further one. For use in the event loop."""
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()

    async def _get(self, url: str) -> bytes:
        if self._is_cancelled:
            raise asyncio.CancelledError
        self._task = asyncio.current_task()
        began_s = self._loop.time()
        try:
            async with asyncio.timeout(self._seconds_left):
                content = await self._follow(url)
        except TimeoutError:
            raise InputError(f"was not fetched within {self._limits.body_timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise InputError("cannot be fetched: the connection to its server failed") from error
        finally:
            self._task = None
        self._seconds_left -= self._loop.time() - began_s
        self._bytes_left -= len(content)
        return content

    async def _follow(self, url: str) -> bytes:
        # Unpacked contents could be larger than any limit, and cookies would pass from one request to another.
        async with aiohttp.ClientSession(
            headers={"Accept-Encoding": "identity"},
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(),
        ) as session:
            for _ in range(1 + _MAX_REDIRECTS):
                async with session.get(self._check_url(url), allow_redirects=False) as response:
                    if response.status in _REDIRECTS and "Location" in response.headers:
                        url = urljoin(url, response.headers["Location"])
                    elif response.status == 200:
                        return await self._read(response)
                    else:
                        raise InputError(f"cannot be fetched: its server answers with HTTP {response.status}")
        raise InputError(f"cannot be fetched: there are more than {_MAX_REDIRECTS} redirects")

    def _check_url(self, url: str) -> str:
        for prefix in self._prefixes:
            if (allowed := prefix.match(url)) is not None:
                return allowed
        raise InputError("is not a URL that this server fetches: send a data URL, or allow it by `--allow-media-url`")

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        content = bytearray()
        async for chunk in response.content.iter_any():
            content += chunk
            if len(content) > self._bytes_left:
                raise InputError(
                    f"is too large: a request's files may have {self._limits.max_body_bytes} bytes together"
                )
        return bytes(content)
