"""Small image files that take long to read."""

from __future__ import annotations

import io
import struct


def many_scans(count: int, side: int) -> bytes:
    """A progressive JPEG whose last scan is there `count` times more."""
    from PIL import Image

    file = io.BytesIO()
    Image.new("L", (side, side), 128).save(file, "JPEG", progressive=True, quality=50)
    content = file.getvalue()
    scan = content.rindex(b"\xff\xda")
    end = content.rindex(b"\xff\xd9")
    return content[:end] + content[scan:end] * count + content[end:]


def many_pages(count: int) -> bytes:
    """A TIFF of one pixel, followed by directories that lead from one to the next."""
    tags = {256: 1, 257: 1, 258: 8, 259: 1, 262: 1, 273: 8, 277: 1, 278: 1, 279: 1}
    entries = struct.pack("<H", len(tags)) + b"".join(struct.pack("<HHII", tag, 4, 1, tags[tag]) for tag in tags)
    size = len(entries) + 4
    places = [8 + size * number for number in range(1, count)] + [0]
    return struct.pack("<2sHI", b"II", 42, 8) + b"".join(entries + struct.pack("<I", place) for place in places)


def many_frames(count: int) -> bytes:
    """A GIF of one pixel per frame."""
    head = b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0x80, 0, 0) + bytes((0, 0, 0, 255, 255, 255))
    frame = b"\x2c" + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02\x44\x01\x00"
    return head + frame * count + b"\x3b"
