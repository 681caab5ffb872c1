"""The outputs that a bench record keeps: images side by side with their difference, and audio players."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Sequence

from omni_cli.record import KeptOutput, Record, Variant
from omni_cli.report.units import memory
from omni_cli.report.view import Element, Gallery, Medium, Paragraph

MAX_BYTES = 16 * 2**20
"""The most that the outputs of one record add to the page."""

_MAX_SIDE = 4096
_PNG, _HEADER = b"\x89PNG\r\n\x1a\n", struct.Struct(">8s4x4sII")
_NAMES = {"image": "Image", "video": "Frames of the video", "audio": "Audio"}


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
