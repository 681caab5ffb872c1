"""The address of a server: it is bound before the libraries of a server are imported."""

from __future__ import annotations

import errno
import ipaddress
import socket

from omni_cli.core.errors import UsageError

BACKLOG = 512
# The kernel ends a connection whose client reads nothing for this long, although there is something to read.
_UNREAD_TIMEOUT_MS = 30_000


def bind(host: str, port: int) -> socket.socket:
    """Bind a listening socket; port 0 takes a free port. Raises `UsageError`."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise UsageError(f"cannot serve on `{host}`: {error.strerror}") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_TIMEOUT_MS)
        listener.bind(address)
        # Listen immediately, so that of two servers that start together the second one fails.
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        is_taken = error.errno == errno.EADDRINUSE
        hint = "choose another with `--port`; 0 takes a free one" if is_taken else None
        raise UsageError(f"cannot serve on {host}:{port}: {error.strerror}", hint=hint) from error
    return listener


def get_address(listener: socket.socket) -> tuple[str, int, str]:
    """Return (host, port, URL) of a bound socket."""
    host, port = listener.getsockname()[:2]
    return host, port, f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(listener: socket.socket) -> bool:
    """Return True if only this machine can connect to it."""
    return ipaddress.ip_address(listener.getsockname()[0]).is_loopback
