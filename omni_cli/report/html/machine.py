"""The environment of a record, and the commands that repeat it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from omni_cli.report.bench_server import server_title
from omni_cli.report.bench_text import shown
from omni_cli.report.html.elements import Code, Facts, Paragraph, Part

_PARTS = {
    "machine": "Machine",
    "versions": "Versions",
    "variables": "Environment variables",
    "conditions": "Conditions",
}

_LINE = 76


def mapping(value: object) -> Mapping[str, object]:
    """Return `value` if it is a mapping, else an empty one: records may contain anything."""
    return value if isinstance(value, Mapping) else {}


def sentence(text: str) -> str:
    """Add a capital letter and a full stop."""
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else text + "."


def workload_title(workload: Mapping[str, object]) -> str:
    """Format `tiny-omni, thinker + talker`, or `chat of a server`."""
    if workload.get("kind") == "server":
        return server_title(workload)
    if workload.get("kind") == "imported":
        return f"results of {shown(workload.get('tool', 'another tool'))}"
    stages = workload.get("stages")
    named = " + ".join(map(shown, stages)) if isinstance(stages, list) else shown(workload.get("stage", ""))
    what = "end to end" if workload.get("stage") == "all" else named
    return f"{shown(workload.get('profile', 'unknown profile'))}, {what}"


def get_device(environment: Mapping[str, object]) -> str:
    """Name the devices, or the processor if there is none."""
    machine = mapping(environment.get("machine"))
    gpus = machine.get("gpus")
    names = [shown(mapping(gpu).get("name", "GPU")) for gpu in gpus] if isinstance(gpus, list) else []
    return f"{len(names)} x {names[0]}" if len(names) > 1 else names[0] if names else shown(machine.get("cpu", ""))


def environment_parts(environment: Mapping[str, object], workload: Mapping[str, object]) -> list[Part]:
    """List machine, versions, variables, conditions, and the workload with its settings."""
    parts: list[Part] = []
    for key, title in _PARTS.items():
        rows = tuple(_rows(mapping(environment.get(key))))
        if rows:
            parts.append(Facts(title, rows))
    rows = tuple(_rows({key: value for key, value in workload.items() if key != "settings"}))
    settings = tuple(_rows(mapping(workload.get("settings"))))
    return [*parts, *([Facts("Workload", rows)] if rows else []), *([Facts("Settings", settings)] if settings else [])]


def reproduce_parts(command: Sequence[str], environment: Mapping[str, object]) -> list[Part]:
    """List the commit, the versions and the command."""
    code = mapping(environment.get("code"))
    versions = mapping(environment.get("versions"))
    lines = []
    commit = code.get("commit")
    if isinstance(commit, str):
        lines.append(f"git checkout {shlex.quote(commit)}")
    pins = [f"{name}=={version}" for name, version in versions.items() if name != "python"]
    if pins:
        lines.append(_folded(["pip", "install", *map(shown, pins)]))
    if command:
        lines.append(_folded(command))
    parts: list[Part] = []
    if lines:
        parts.append(Code("Commands", "\n".join(lines)))
    sentences = []
    if code.get("dirty") is True:
        sentences.append("The code had changes that are in no commit.")
    if "python" in versions:
        sentences.append(
            f"Python was {shown(versions['python'])}, omni {shown(code.get('omni', 'of an unknown version'))}."
        )
    return [*parts, *([Paragraph(" ".join(sentences))] if sentences else [])]


def _rows(values: Mapping[str, object], prefix: str = "") -> list[tuple[str, str]]:
    """Return one row per leaf; a list of plain values is one leaf."""
    rows: list[tuple[str, str]] = []
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            rows += _rows(value, f"{name}.")
        elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            for number, item in enumerate(value):
                rows += _rows(item, f"{name} {number}.")
        else:
            listed = ", ".join(shown(item) for item in value) if isinstance(value, list) else shown(value)
            rows.append((shown(name), listed or "none"))
    return rows


def _folded(command: Sequence[str]) -> str:
    """Format a command for a shell, on several lines if it is long."""
    lines = [""]
    for word in map(shlex.quote, command):
        if lines[-1] and len(lines[-1]) + len(word) > _LINE:
            lines.append("   ")
        lines[-1] += f" {word}" if lines[-1] else word
    return " \\\n".join(lines)
