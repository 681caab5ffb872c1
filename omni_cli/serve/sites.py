"""Rules on URLs: which sites' pages may use the server, and from where it fetches media."""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit

from starlette.datastructures import Headers

from omni_cli.core.errors import UsageError
from omni_cli.serve.errors import APIError

_DEFAULT_PORTS = {"http": 80, "https": 443}
_INVALID_URL = urlsplit("invalid:")
# Desktop programs have schemes of their own, such as `app://obsidian.md`.
_ORIGIN = re.compile(r"([a-z][a-z\d+.-]*)://([\w.-]+|\[[\da-f:.]+\])(?::(\d{1,5}))?/?", re.ASCII)


def read_origin(text: str) -> str:
    """Return an origin as browsers send it, or `*` for any. Raises `UsageError`."""
    match = _ORIGIN.fullmatch(text.lower())
    if text == "*":
        return text
    if match is None:
        hint = "use a scheme and a host, such as `https://app.example`, or `*` for all"
        raise UsageError(f"`--allow-origin`: `{text}` is not an origin", hint=hint)
    scheme, host, port = match.groups()
    is_default = port is None or int(port) == _DEFAULT_PORTS.get(scheme)
    return f"{scheme}://{host}" if is_default else f"{scheme}://{host}:{int(port)}"


@dataclass(frozen=True)
class SiteRule:
    """Browsers send `Origin` or `Sec-Fetch-Site`, which must name this server; other clients send neither.

    A site can also let its own name resolve to this machine (DNS rebinding): to the browser, its pages then come from
    this server. They do not know the key. Without a key, `Host` must be a name that no site can have: on a loopback
    address in every request, elsewhere in those of browsers.

    Pages of `allowed_origins` may use this server under any name; `*` is any page.
    """

    is_loopback: bool
    has_key: bool
    allowed_origins: tuple[str, ...] = ()

    def allows(self, origin: str | None) -> bool:
        """Return True for a page that the server's settings name."""
        return "*" in self.allowed_origins or origin in self.allowed_origins

    def refusal(self, headers: Headers) -> APIError | None:
        """Return the error for a request of another site, None for others."""
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if self.allows(origin):
            return None
        host, page = _split_url(f"//{headers.get('host', '')}"), _split_url(origin or "")
        if not self.has_key and not self._is_own(host, is_browser=origin is not None or site is not None):
            where = (
                "for its own machine only: use localhost or 127.0.0.1"
                if self.is_loopback
                else "for browsers only by its address: use the IP address"
            )
            return APIError(403, f"this server is {where}, or start it with an API key", code="wrong_host")
        if page is _INVALID_URL:
            return APIError(400, "the header `Origin` is not a URL", code="invalid_origin")
        is_same = site == "same-origin" or origin is None or _is_same(page, host)
        if site == "cross-site" or not is_same:
            message = "this server answers no pages of other sites, except those of `--allow-origin`"
            return APIError(403, message, code="wrong_origin")
        return None

    def _is_own(self, host: SplitResult, *, is_browser: bool) -> bool:
        name = host.hostname or ""
        if self.is_loopback:
            return _is_local(name)
        # Names of sites have a dot.
        is_no_site = _address(name) is not None or "." not in name or name == socket.gethostname().lower()
        return is_no_site or not is_browser


def _is_same(page: SplitResult, host: SplitResult) -> bool:
    """Compare without the scheme, which a proxy may have changed; pages of this machine may use each other's ports."""
    port = _DEFAULT_PORTS.get(page.scheme)
    if page.hostname is not None and page.hostname == host.hostname and (page.port or port) == (host.port or port):
        return True
    return _is_local(page.hostname) and _is_local(host.hostname)


def _is_local(name: str | None) -> bool:
    address = _address(name or "")
    return name == "localhost" or (address is not None and address.is_loopback)


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


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
    parts = _split_url(url)
    is_http = parts.scheme in _DEFAULT_PORTS and bool(parts.hostname) and "@" not in parts.netloc
    return parts if is_http and ".." not in re.split(r"[/\\]", unquote(parts.path)) else None


def _origin(parts: SplitResult) -> str:
    host = f"[{parts.hostname}]" if ":" in str(parts.hostname) else parts.hostname
    port = "" if parts.port in (None, _DEFAULT_PORTS[parts.scheme]) else f":{parts.port}"
    return f"{parts.scheme}://{host}{port}"


def _split_url(url: str) -> SplitResult:
    """Return the parts of a URL, or those of `invalid:`."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # is parsed only here
    except ValueError:
        return _INVALID_URL
    return parts
