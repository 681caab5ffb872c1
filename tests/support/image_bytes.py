"""Image files put together byte by byte, in ways that Pillow does not write them."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterable, Sequence

from PIL import Image


def pack(values: Iterable[int], bits: int) -> bytes:
    """Pack whole numbers, big-endian, with zeros up to the next byte."""
    text = "".join(format(value, f"0{bits}b") for value in values)
    text += "0" * (-len(text) % 8)
    return bytes(int(text[start : start + 8], 2) for start in range(0, len(text), 8))


def png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width: int, bits: int, colour_type: int, rows: Sequence[bytes], *more: bytes) -> bytes:
    """`more` are chunks before the pixels."""
    header = struct.pack(">IIBBBBB", width, len(rows), bits, colour_type, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows))
    chunks = (png_chunk(b"IHDR", header), *more, png_chunk(b"IDAT", pixels), png_chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def tiff(
    size: tuple[int, int],
    bits: int,
    photometric: int,
    pixels: bytes,
    *,
    order: str = "<",
    is_big: bool = False,
    samples: int = 1,
    sample_format: int = 1,
    tags: dict[int, tuple[int, int, int]] | None = None,
    next_page: int = 0,
) -> bytes:
    """Write one strip; `tags` gives type, count and value of further tags, or of these."""
    offset, count, first = ("Q", "Q", 16) if is_big else ("I", "H", 8)
    all_tags = {
        **{256: (4, 1, size[0]), 257: (4, 1, size[1]), 258: (3, 1, bits), 259: (3, 1, 1), 262: (3, 1, photometric)},
        **{273: (4, 1, 0), 277: (3, 1, samples), 278: (4, 1, size[1]), 279: (4, 1, len(pixels))},
        **{339: (3, 1, sample_format)},
        **(tags or {}),
    }
    start = first + struct.calcsize("=" + count + offset) + len(all_tags) * (20 if is_big else 12)
    all_tags[273] = (4, 1, start) if all_tags[273] == (4, 1, 0) else all_tags[273]
    head = {"<": b"II", ">": b"MM"}[order]
    head += struct.pack(order + "HHHQ", 43, 8, 0, first) if is_big else struct.pack(order + "HI", 42, first)
    table = struct.pack(order + count, len(all_tags))
    for tag, (kind, number, value) in sorted(all_tags.items()):
        packed = struct.pack(order + {1: "B", 3: "H", 4: "I"}.get(kind, "I"), value)
        table += struct.pack(order + "HH" + offset, tag, kind, number) + packed.ljust(struct.calcsize(offset), b"\0")
    return head + table + struct.pack(order + offset, next_page) + pixels


def jpeg_of_scans(count: int, side: int) -> bytes:
    """A progressive JPEG whose last scan, of one grey, is there `count` times more."""
    file = io.BytesIO()
    Image.new("L", (side, side), 128).save(file, "JPEG", progressive=True, quality=50)
    content, position, scan = file.getvalue(), 2, 0
    while content[position + 1] != 0xD9:
        after = position + 2 + int.from_bytes(content[position + 2 : position + 4], "big")
        if content[position + 1] == 0xDA:
            scan = position
            while content[after] != 0xFF or content[after + 1] == 0:
                after += 1
        position = after
    return content[:position] + content[scan:position] * count + content[position:]
