"""Requests of other sites' pages are refused, those of other clients and of the server's own pages are not."""

from __future__ import annotations

import socket

import pytest
from starlette.datastructures import Headers

from omni_cli.core.errors import UsageError
from omni_cli.serve.sites import SiteRule, read_origin

LOCAL = SiteRule(is_loopback=True, has_key=False)
LOCAL_WITH_KEY = SiteRule(is_loopback=True, has_key=True)
OPEN = SiteRule(is_loopback=False, has_key=False)
OPEN_WITH_KEY = SiteRule(is_loopback=False, has_key=True)
RULES = (LOCAL, LOCAL_WITH_KEY, OPEN, OPEN_WITH_KEY)


def code(rule: SiteRule, host: str, origin: str | None = None, site: str | None = None) -> str | None:
    given = {"host": host, "origin": origin, "sec-fetch-site": site}
    refusal = rule.refusal(Headers({name: value for name, value in given.items() if value is not None}))
    assert refusal is None or refusal.status == (400 if refusal.code == "invalid_origin" else 403)
    return None if refusal is None else refusal.code


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("origin", "site"),
    [
        ("https://evil.example", None),
        ("https://evil.example", "cross-site"),
        (None, "cross-site"),
        ("null", None),
        ("http://127.0.0.1.evil.example:8000", None),
        ("", None),
        ("file://", None),
    ],
)
def test_pages_of_other_sites(rule: SiteRule, origin: str | None, site: str | None) -> None:
    assert code(rule, "127.0.0.1:8000", origin, site) == "wrong_origin"


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("origin", ["http://[", "http://127.0.0.1:99999999"])
def test_an_invalid_origin(rule: SiteRule, origin: str) -> None:
    assert code(rule, "127.0.0.1:8000", origin, None) == "invalid_origin"


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("host", "origin", "site"),
    [
        ("127.0.0.1:8000", None, None),
        ("localhost:8000", "http://localhost:8000", "same-origin"),
        ("localhost:8000", "http://localhost:3000", "same-site"),
        ("[::1]:8000", "http://127.0.0.1:8000", None),
        ("127.0.0.1", "http://127.0.0.1:80", None),
        ("localhost:8000", None, "none"),
    ],
)
def test_pages_of_this_machine_and_other_clients(
    rule: SiteRule, host: str, origin: str | None, site: str | None
) -> None:
    assert code(rule, host, origin, site) is None


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "8.8.8.8", "[::2]", "[", "", "localhost:x"])
def test_another_name_on_a_loopback_address(host: str) -> None:
    assert code(LOCAL, host) == "wrong_host"
    assert code(LOCAL, host, f"http://{host}") == "wrong_host"
    assert code(LOCAL_WITH_KEY, host) is None


def test_a_name_that_may_be_a_sites_on_another_address() -> None:
    """A browser cannot tell a page of `evil.example`, whose name resolves to this machine, from one of the server's."""
    assert code(OPEN, "evil.example:8000", "http://evil.example:8000") == "wrong_host"
    assert code(OPEN, "gpu.example:8000") is None
    for host in ("192.168.1.5:8000", "gpu:8000", f"{socket.gethostname()}:8000", "[fd00::1]:8000"):
        assert code(OPEN, host, f"http://{host}") is None
    assert code(OPEN_WITH_KEY, "gpu.example", "https://gpu.example") is None


def test_a_proxy_that_changes_the_host() -> None:
    assert code(OPEN_WITH_KEY, "127.0.0.1:8000", "https://gpu.example", "same-origin") is None
    assert code(OPEN_WITH_KEY, "127.0.0.1:8000", "https://gpu.example", "same-site") == "wrong_origin"


@pytest.mark.parametrize("has_key", [False, True])
@pytest.mark.parametrize("is_loopback", [False, True])
def test_an_allowed_page(is_loopback: bool, has_key: bool) -> None:
    rule = SiteRule(is_loopback, has_key, ("https://app.example",))
    for host in ("127.0.0.1:8000", "gpu.example"):
        assert code(rule, host, "https://app.example", "cross-site") is None
    for other in ("http://app.example", "https://app.example:8443", "https://app.example.evil", "null"):
        assert code(rule, "127.0.0.1:8000", other, "cross-site") == "wrong_origin"
    assert code(rule, "127.0.0.1:8000", None, "cross-site") == "wrong_origin"
    assert code(SiteRule(is_loopback, has_key, ("*",)), "127.0.0.1:8000", "https://evil.example", "cross-site") is None


def test_origins_are_read_as_browsers_write_them() -> None:
    assert read_origin("https://App.Example:443/") == "https://app.example"
    assert read_origin("http://[::1]:3000") == "http://[::1]:3000"
    assert read_origin("app://obsidian.md") == "app://obsidian.md"
    assert read_origin("*") == "*"
    for wrong in (
        "app.example",
        "https://app.example/page",
        "https://user@app.example",
        "https://*.example",
        "null",
        "",
    ):
        with pytest.raises(UsageError, match="is not an origin"):
            read_origin(wrong)
