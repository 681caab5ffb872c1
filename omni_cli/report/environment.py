"""The environment of a record, and the commands that repeat it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from omni_cli.report.units import count, one_line
from omni_cli.report.view import Code, Element, Facts, Paragraph, Section

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


def workload_title(workload: Mapping[str, object], separator: str = ", ") -> str:
    """Format `tiny-omni, thinker + talker`, or `chat of a server`."""
    if workload.get("kind") == "server":
        return f"{one_line(workload.get('endpoint', '?'))} of a server"
    if workload.get("kind") == "imported":
        return f"results of {one_line(workload.get('tool', 'another tool'))}"
    stages = workload.get("stages")
    named = " + ".join(map(one_line, stages)) if isinstance(stages, list) else one_line(workload.get("stage", ""))
    what = "end to end" if workload.get("stage") == "all" else named
    return f"{one_line(workload.get('profile', 'unknown profile'))}{separator}{what}"


def short_title(workload: Mapping[str, object]) -> str:
    """Describe the workload in a few words: `tiny-omni talker`."""
    if workload.get("kind") == "server":
        return workload_title(workload)
    return f"{one_line(workload.get('profile', '?'))} {one_line(workload.get('stage', '?'))}"


def get_device(environment: Mapping[str, object]) -> str:
    """Name the devices, or the processor with its cores if there is none; empty for an unknown machine."""
    machine = mapping(environment.get("machine"))
    gpus, cores = machine.get("gpus"), machine.get("usable_cores")
    names = [one_line(mapping(gpu).get("name", "GPU")) for gpu in gpus] if isinstance(gpus, list) else []
    if names:
        return f"{len(names)} x {names[0]}" if len(names) > 1 else names[0]
    processor = one_line(machine.get("cpu", ""))
    return f"{processor} ({count(cores, 'core')})" if processor and isinstance(cores, int) else processor


def origin_sections(
    environment: Mapping[str, object], workload: Mapping[str, object], command: Sequence[str]
) -> list[Section]:
    """Return the sections of where a record comes from, and of the commands that repeat it."""
    return [
        Section("Environment", _environment(environment, workload), only="page"),
        Section("Reproduce", _commands(command, environment), only="page"),
    ]


def _environment(environment: Mapping[str, object], workload: Mapping[str, object]) -> list[Element]:
    """List machine, versions, variables, conditions, and the workload with its settings."""
    parts: list[Element] = []
    for key, title in _PARTS.items():
        rows = tuple(_rows(mapping(environment.get(key))))
        if rows:
            parts.append(Facts(title, rows))
    rows = tuple(_rows({key: value for key, value in workload.items() if key != "settings"}))
    settings = tuple(_rows(mapping(workload.get("settings"))))
    return [*parts, *([Facts("Workload", rows)] if rows else []), *([Facts("Settings", settings)] if settings else [])]


def _commands(command: Sequence[str], environment: Mapping[str, object]) -> list[Element]:
    """List the commit, the versions and the command."""
    code = mapping(environment.get("code"))
    versions = mapping(environment.get("versions"))
    lines = []
    commit = code.get("commit")
    if isinstance(commit, str):
        lines.append(f"git checkout {shlex.quote(commit)}")
    pins = [f"{name}=={version}" for name, version in versions.items() if name != "python"]
    if pins:
        lines.append(_folded(["pip", "install", *map(one_line, pins)]))
    if command:
        lines.append(_folded(command))
    parts: list[Element] = []
    if lines:
        parts.append(Code("Commands", "\n".join(lines)))
    sentences = []
    if code.get("dirty") is True:
        sentences.append("The code had changes that are in no commit.")
    if "python" in versions:
        sentences.append(
            f"Python was {one_line(versions['python'])}, omni {one_line(code.get('omni', 'of an unknown version'))}."
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
            listed = ", ".join(one_line(item) for item in value) if isinstance(value, list) else one_line(value)
            rows.append((one_line(name), listed or "none"))
    return rows


def _folded(command: Sequence[str]) -> str:
    """Format a command for a shell, on several lines if it is long."""
    lines = [""]
    for word in map(shlex.quote, command):
        if lines[-1] and len(lines[-1]) + len(word) > _LINE:
            lines.append("   ")
        lines[-1] += f" {word}" if lines[-1] else word
    return " \\\n".join(lines)
