"""Fetch media that a request names by URL, only from places that the server's settings allow."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urljoin

import aiohttp

from omni_cli.core.errors import InputError, UsageError
from omni_cli.serve.limits import Limits
from omni_cli.serve.sites import DEFAULT_PORTS, split_url

_MAX_REDIRECTS = 5
_REDIRECTS = (301, 302, 303, 307, 308)


@dataclass(frozen=True)
class MediaPrefix:
    """The URLs of one server, `https://media.example:8443`, below a path that is empty or has no `/` at its end."""

    origin: str
    path: str

    @staticmethod
    def read(text: str) -> MediaPrefix:
        """Raises `UsageError`."""
        parts = _split(text)
        if parts is None or parts.query or parts.fragment:
            hint = "use one such as `https://media.example/images/`"
            raise UsageError(f"`--allow-media-url`: `{text}` is not the beginning of an HTTP URL", hint=hint)
        return MediaPrefix(_origin(parts), parts.path.rstrip("/"))

    def match(self, url: str) -> str | None:
        """Return the URL to request, None for one that is elsewhere.

        Its host is copied from this prefix, so no other reader of URLs can take it for another one.
        """
        parts = _split(url)
        if parts is None or _origin(parts) != self.origin or not f"{parts.path}/".startswith(f"{self.path}/"):
            return None
        return f"{self.origin}{parts.path or '/'}" + (f"?{parts.query}" if parts.query else "")


def _split(url: str) -> SplitResult | None:
    """Return the parts of a URL; None for one that is not an HTTP URL, has a user, or leaves its own folder."""
    parts = split_url(url)
    is_http = parts.scheme in DEFAULT_PORTS and bool(parts.hostname) and "@" not in parts.netloc
    return parts if is_http and ".." not in re.split(r"[/\\]", unquote(parts.path)) else None


def _origin(parts: SplitResult) -> str:
    host = f"[{parts.hostname}]" if ":" in str(parts.hostname) else parts.hostname
    port = "" if parts.port in (None, DEFAULT_PORTS[parts.scheme]) else f":{parts.port}"
    return f"{parts.scheme}://{host}{port}"


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
