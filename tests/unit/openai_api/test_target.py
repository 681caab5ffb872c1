"""Addresses of servers."""

from __future__ import annotations

import pytest

from omni_cli.core.errors import UsageError
from omni_cli.openai_api.client import parse_url


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000"),
        ("https://example.org/proxy/v1/", "https://example.org/proxy"),
        ("http://[::1]:9000", "http://[::1]:9000"),
        ("localhost:8000/v1", "http://localhost:8000"),
        ("10.0.0.1:80", "http://10.0.0.1:80"),
        ("localhost", "http://localhost"),
        ("127.0.0.1/v1", "http://127.0.0.1"),
        ("server:8000", "http://server:8000"),
        ("models.example.org/proxy", "http://models.example.org/proxy"),
        ("[::1]:9000", "http://[::1]:9000"),
    ],
)
def test_addresses(text: str, url: str) -> None:
    assert parse_url(text) == url


@pytest.mark.parametrize(
    "text",
    [
        "server", "", "ftp://a", "http://", "http://:80", "http://a:port", "http://a:99999",
        "http://a:0", "http://a?x=1", "http://a#x", "http://[::1", "file:///etc/passwd",
    ],
)  # fmt: skip
def test_invalid_targets(text: str) -> None:
    with pytest.raises(UsageError):
        parse_url(text)


def test_a_password_is_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError) as caught:
        parse_url("http://me:hunter2@a:80")
    assert "hunter2" not in caught.value.message + caught.value.hint
