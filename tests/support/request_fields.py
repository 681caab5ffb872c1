"""Requests by the names of all their fields, whichever part of a request has them."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

from omni_cli.requests.outputs import GenerateRequest

_DEFAULTS = vars(GenerateRequest(""))
_PARTS = {field.name: part for part, value in _DEFAULTS.items() if is_dataclass(value) for field in fields(value)}


def with_fields(request: GenerateRequest, **changes: Any) -> GenerateRequest:
    """Return the request with other values of its own fields and of those of its parts."""
    own = {name: value for name, value in changes.items() if name in _DEFAULTS}
    parts: dict[str, dict[str, Any]] = {}
    for name in changes.keys() - own.keys():
        parts.setdefault(_PARTS[name], {})[name] = changes[name]
    return replace(
        request, **own, **{part: replace(getattr(request, part), **values) for part, values in parts.items()}
    )
