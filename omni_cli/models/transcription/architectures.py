"""Architectures of vLLM that transcribe speech, read from its sources: importing them would take seconds."""

from __future__ import annotations

import functools
import re

from omni_cli.checkpoints.architectures import VLLM_MODELS, read_source

_INTERFACE = "SupportsTranscription"
# vLLM's table of the models that take media and generate; those beside it pool.
_TABLE = re.compile(r"^_MULTIMODAL_MODELS = \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_NOTHING_ELSE = re.compile(r"^    supports_transcription_only\b[^=\n]*= True", re.MULTILINE)


def only_transcribes(architecture: str) -> bool:
    """True for a model that does nothing else."""
    return any(_NOTHING_ELSE.search(body) for body in _transcriber(architecture))


def also_transcribes(architecture: str) -> bool:
    """True for a model that answers prompts as well."""
    return bool(_transcriber(architecture)) and not only_transcribes(architecture)


@functools.cache
def _transcriber(architecture: str) -> tuple[str, ...]:
    """Return the statements of an architecture's class and its bases; none for one that does not transcribe."""
    table = _TABLE.search(read_source("registry", *VLLM_MODELS))
    row = re.search(rf'"{re.escape(architecture)}": \(\s*"(\w+)",\s*"(\w+)"', table[1]) if table else None
    bodies = () if row is None else tuple(_bodies(row[1], row[2]))
    return bodies if any(re.search(rf"\b{_INTERFACE}\b", body.partition(":\n")[0]) for body in bodies) else ()


def _bodies(module: str, name: str) -> list[str]:
    source = read_source(module, *VLLM_MODELS)
    own = re.search(rf"^class {name}\b(.*?)(?=^\S(?!:)|\Z)", source, re.MULTILINE | re.DOTALL)
    if own is None:
        # Imported from a neighbour, `from .module import (...)` or by vLLM's whole name.
        place = rf"^from (?:vllm\.model_executor\.models)?\.(\w+) import (?:\([^)]*?\b{name}\b|[^(\n]*\b{name}\b)"
        origin = re.search(place, source, re.MULTILINE)
        return [] if origin is None else _bodies(origin[1], name)
    bases = re.findall(r"\w+", own[1].partition(":\n")[0])
    return [own[1], *(body for base in bases if base != _INTERFACE for body in _bodies(module, base))]
