"""The measured server: its address, and its description of itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from omni_cli.errors import OmniError, UsageError
from omni_cli.openai_api.client import Client, RequestFailure
from omni_cli.openai_api.routes import Route
from omni_cli.text import visible

_PROBE_TIMEOUT_S = 10.0
_HEADERS = ("server", "x-powered-by")
_ADDRESS = "pass the address of an OpenAI-compatible server, without the endpoint's path"


@dataclass(frozen=True)
class Target:
    """`model` is the name that requests carry, `description` the server's self-description."""

    url: str
    model: str
    description: dict[str, object] = field(default_factory=dict)

    @property
    def salts_caches(self) -> bool:
        """True if the server runs on vLLM, which has a prefix cache and accepts `cache_salt`."""
        return self.description.get("owned_by") in ("vllm", "omni-cli")


def parse_url(text: str) -> str:
    """Return a server's address without a trailing `/v1`. Raises `UsageError`."""
    shown = visible(text, 120)
    hint = "for example `omni loadtest http://127.0.0.1:8000`"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"`{shown}` is not an address: {error}", hint=hint) from error
    if parts.username is not None or parts.password is not None:
        # Not repeated in the message, which may end up in logs.
        raise UsageError(
            "the address of a server must not contain a password", hint="set OPENAI_API_KEY, or pass `--api-key`"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise UsageError(f"`{shown}` is not the address of a server", hint=hint)
    if parts.query or parts.fragment:
        raise UsageError(f"`{shown}` has a query or a fragment", hint=hint)
    path = parts.path.rstrip("/").removesuffix("/v1")
    return f"{parts.scheme}://{parts.netloc}{path}"


def find_targets(urls: Sequence[str], model: str | None, api_key: str | None) -> tuple[Target, ...]:
    """Ask every server for its models; without `model`, its first one is measured. Raises `OmniError`."""
    return asyncio.run(_find_all(urls, model, api_key))


async def _find_all(urls: Sequence[str], model: str | None, api_key: str | None) -> tuple[Target, ...]:
    targets: dict[str, Target] = {}
    for url in dict.fromkeys(urls):
        async with Client(url, api_key=api_key, timeout_s=_PROBE_TIMEOUT_S) as client:
            targets[url] = await _find(client, model)
    return tuple(targets[url] for url in urls)


async def _find(client: Client, model: str | None) -> Target:
    answer = await client.get(Route.MODELS)
    if isinstance(answer, RequestFailure):
        if model is not None and answer.kind.startswith(("HTTP 404", "HTTP 5")):
            return Target(client.url, model)
        raise _unusable(client.url, answer)
    document, headers = answer
    models = document.get("data") if isinstance(document, dict) else None
    if not isinstance(models, list) or not all(isinstance(item, dict) and item.get("id") for item in models):
        raise _foreign(client.url)
    if not models and model is None:
        raise OmniError(f"`{client.url}` has no model", hint="name it with `--model`")
    name = str(models[0]["id"]) if model is None else model
    description: dict[str, object] = next((item for item in models if item["id"] == name), {})
    kept = {key: value for key, value in description.items() if isinstance(value, str | int | float | bool | list)}
    # The start time of a server differs from run to run.
    kept.pop("created", None)
    kept.pop("object", None)
    return Target(client.url, name, {**kept, **{key: headers[key] for key in _HEADERS if key in headers}})


def _foreign(url: str) -> OmniError:
    return OmniError(f"`{url}` does not answer GET /v1/models as OpenAI's API does", hint=_ADDRESS)


def _unusable(url: str, failure: RequestFailure) -> OmniError:
    if failure.kind == "invalid answer":
        return _foreign(url)
    if not failure.kind.startswith("HTTP"):
        hint = "start the server; `omni serve` prints its address when it is ready"
        detail = "" if failure.kind in ("connection refused", "no such host") else f" ({failure.message})"
        return OmniError(f"cannot reach `{url}`: {failure.kind}{detail}", hint=hint)
    advice = None
    if failure.kind.startswith(("HTTP 401", "HTTP 403")):
        advice = "set OPENAI_API_KEY, or pass `--api-key`"
    elif failure.kind.startswith("HTTP 404"):
        advice = _ADDRESS
    return OmniError(f"`{url}` rejects GET /v1/models: {failure.kind}: {failure.message}", hint=advice)
