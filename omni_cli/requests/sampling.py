"""Sampling in effect: the value of each parameter, and who named it.

A request comes before the profile, this before the checkpoint. Where none of them names how tokens are drawn, a stage
that makes text takes the most likely one, as transformers does, and one that makes codes draws at vLLM's temperature 1.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

# Naming one of them asks for tokens to be drawn, at vLLM's temperature 1 if that is not named.
DRAWING = ("temperature", "top_p", "top_k", "min_p")
_PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
_KEYS = (*DRAWING, *_PENALTIES, "max_tokens")

SamplingValues = Mapping[str, Mapping[str, Any]]
"""Parameters by name, each with `value` and `source`: `request`, `profile`, `checkpoint` or `default`."""


def names_drawing(sampling: Mapping[str, Any]) -> bool:
    return any(sampling.get(name) is not None for name in DRAWING)


def default_temperature(named: Mapping[str, Any], *, makes_text: bool) -> float:
    """Return the temperature where `named`, the parameters of all sources, have none."""
    return 0.0 if makes_text and not names_drawing(named) else 1.0


def name_sources(temperature: float, **sources: Mapping[str, Any]) -> SamplingValues:
    """Return what `sources`, the first first, name, with the `temperature` in effect, which may be a task's own."""
    named: dict[str, Mapping[str, Any]] = {"temperature": {"value": temperature, "source": "default"}}
    for source, given in reversed(sources.items()):
        named |= _named_by(source, given)
    if temperature == 0 != named["temperature"]["value"]:
        named["temperature"] = {"value": 0.0, "source": "default"}
    return named


def with_request(defaults: SamplingValues, sampling: Mapping[str, Any]) -> SamplingValues:
    """Return the sampling of a request, from that of one which names none."""
    named = _named_by("request", sampling)
    if names_drawing(sampling) and is_by_default(defaults):
        named.setdefault("temperature", {"value": 1.0, "source": "default"})
    return {**defaults, **named} if defaults else {}


def _named_by(source: str, given: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {name: {"value": given[name], "source": source} for name in _KEYS if given.get(name) is not None}


def is_by_default(named: SamplingValues) -> bool:
    """True if nobody names how tokens are drawn."""
    return bool(named) and all(named[name]["source"] == "default" for name in DRAWING if name in named)


def describe(named: SamplingValues) -> str:
    """Format `temperature 0.2, top_p 0.9 (checkpoint)`, or `greedy (default)`; "" for a stage that draws no tokens."""
    if not named:
        return ""
    parts = [(name, named[name]) for name in (*DRAWING, *_PENALTIES) if name in named]
    if named["temperature"]["value"] == 0:
        parts = [("greedy", named["temperature"]), *(part for part in parts if part[0] in _PENALTIES)]
    texts = []
    for source, group in itertools.groupby(parts, key=lambda part: part[1]["source"]):
        words = [name if name == "greedy" else f"{name} {named[name]['value']:g}" for name, _ in group]
        texts.append(f"{', '.join(words)} ({source})")
    return ", ".join(texts)
