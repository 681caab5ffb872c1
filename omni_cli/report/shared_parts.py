"""Parts that views share: the environment of a record, the commands that repeat it, and the outputs that it keeps."""

from __future__ import annotations

import base64
import shlex
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence

from omni_cli.core.text import visible
from omni_cli.records.record import KeptOutput, Record, Variant, mapping
from omni_cli.report.units import count, memory, one_line
from omni_cli.report.view import Code, Element, Facts, Gallery, Medium, Note, Paragraph, Section

_PARTS = {
    "machine": "Machine",
    "versions": "Versions",
    "variables": "Environment variables",
    "conditions": "Conditions",
}

_LINE = 76


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


def notes_on_requests(notes: object, where: str = "") -> tuple[Note, ...]:
    """Return warnings about what the stages changed about requests, from a record's list of sentences."""
    sentences = notes if isinstance(notes, list | tuple) else ()
    return tuple(Note(where + visible(str(note), 500)) for note in sentences)


def notes_on_variants(variants: Iterable[Variant]) -> tuple[Note, ...]:
    """Return these warnings for each of the variants, none twice."""
    named = ((item.effective.get("notes"), f"variant `{one_line(item.name)}`: ") for item in variants)
    return tuple(dict.fromkeys(note for notes, where in named for note in notes_on_requests(notes, where)))


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
    values = {title: mapping(environment.get(key)) for key, title in _PARTS.items()}
    values["Workload"] = {key: value for key, value in workload.items() if key != "settings"}
    values["Settings"] = mapping(workload.get("settings"))
    return [Facts(title, tuple(rows)) for title, value in values.items() if (rows := _rows(value))]


def _commands(command: Sequence[str], environment: Mapping[str, object]) -> list[Element]:
    """List the commit, the versions and the command."""
    code, versions = mapping(environment.get("code")), mapping(environment.get("versions"))
    commit, omni = code.get("commit"), one_line(code.get("omni", "of an unknown version"))
    pins = [one_line(f"{name}=={version}") for name, version in versions.items() if name != "python"]
    lines = [f"git checkout {shlex.quote(commit)}"] if isinstance(commit, str) else []
    lines += [_fold_command(words) for words in (["pip", "install", *pins] if pins else (), command) if words]
    sentences = ["The code had changes that are in no commit."] if code.get("dirty") is True else []
    sentences += [f"Python was {one_line(versions['python'])}, omni {omni}."] if "python" in versions else []
    parts: list[Element] = [Code("Commands", "\n".join(lines))] if lines else []
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


def _fold_command(command: Sequence[str]) -> str:
    """Format a command for a shell, on several lines if it is long."""
    lines = [""]
    for word in map(shlex.quote, command):
        if lines[-1] and len(lines[-1]) + len(word) > _LINE:
            lines.append("   ")
        lines[-1] += f" {word}" if lines[-1] else word
    return " \\\n".join(lines)


MAX_BYTES = 16 * 2**20
"""The most that the outputs of one record add to the page."""

_MAX_SIDE = 4096
_PNG, _HEADER = b"\x89PNG\r\n\x1a\n", struct.Struct(">8s4x4sII")
_NAMES = {"image": "Image", "video": "Frames of the video", "audio": "Audio"}


def energy_text(variant: Variant) -> str:
    """Format `gpu0 by NVML counter, idle 71.3 W`; empty without a counter."""
    idle_w = variant.energy.idle_power_w if variant.energy else {}
    sources = variant.energy.sources if variant.energy else {}
    return ", ".join(
        f"{one_line(name)} by {one_line(source)}" + (f", idle {idle_w[name]:.1f} W" if name in idle_w else "")
        for name, source in sources.items()
    )


def output_parts(record: Record) -> list[Element]:
    """Return a gallery per output, with that of each variant; outputs beyond `MAX_BYTES` are counted in a sentence."""
    kept = [(variant, output) for variant in record.variants for output in variant.outputs]
    names = dict.fromkeys(output.name for _, output in kept)
    parts: list[Element] = []
    used = left_out = 0
    for name in names:
        items = [(variant, output) for variant, output in kept if output.name == name]
        size = sum(len(output.data) + len(output.difference or b"") for _, output in items)
        if used + size > MAX_BYTES:
            left_out += len(items)
            continue
        used += size
        parts.append(_gallery(name, items))
    if left_out:
        parts.append(Paragraph(f"{left_out} more outputs would make the page larger than {memory(MAX_BYTES)}."))
    return parts


def _gallery(name: str, items: Sequence[tuple[Variant, KeptOutput]]) -> Gallery:
    request, _, rest = name.partition(".")
    kind = _NAMES[items[0][1].kind]
    where = f" of request {request}" if request.isdecimal() else f" {rest or request}"
    return Gallery(f"{kind}{where}", tuple(medium for variant, output in items for medium in _media(variant, output)))


def _media(variant: Variant, output: KeptOutput) -> Iterator[Medium]:
    yield get_medium(f"{variant.name}: {output.text}" if output.text else variant.name, output)
    if output.difference is not None:
        gain = f", times {output.gain:.3g}" if output.gain is not None else ""
        yield Medium("image", f"difference of {variant.name}{gain}", _png(output.difference))


def get_medium(caption: str, output: KeptOutput) -> Medium:
    """Return an output for a page."""
    if output.kind == "audio":
        return Medium("audio", caption, _wav(output.data))
    return Medium("image", caption, _png(output.data))


def _png(data: bytes) -> str | None:
    """Return the source of a PNG image; None for anything else, and for one that a browser would choke on."""
    if len(data) < _HEADER.size:
        return None
    signature, chunk, width, height = _HEADER.unpack_from(data)
    if signature != _PNG or chunk != b"IHDR" or not (0 < width <= _MAX_SIDE and 0 < height <= _MAX_SIDE):
        return None
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def _wav(data: bytes) -> str | None:
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        return None
    return f"data:audio/wav;base64,{base64.b64encode(data).decode()}"
