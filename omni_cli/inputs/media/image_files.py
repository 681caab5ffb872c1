"""Read the structure of image files, and keep only what decoding the first image needs.

Pillow reads metadata and further pages before it decodes, which can take longer than any image.
"""

from __future__ import annotations

import itertools
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from omni_cli.errors import InputError
from omni_cli.inputs.media.tiff import TIFF_PREFIXES, exif_orientation, first_page

# Chunks, segments, tags and the like: a file of 64 Mi pixels in pieces of 1 KiB has fewer.
MAX_PIECES = 200_000
# Of a JPEG. An encoder writes about 10; this is libtiff's limit.
MAX_SCANS = 100
# 0.7 s at most, if the scans hold next to nothing.
MAX_SCANNED_PIXELS = 2**30
# Pillow decodes run-length encoded BMP files in Python, 7 MB/s.
MAX_BMP_RLE_BYTES = 8 << 20


@dataclass
class ImageFile:
    """An image file and what its structure says. `content` holds the first image alone."""

    format: str
    content: bytes
    # EXIF's number, 1 to 8.
    orientation: int = 1
    has_more: bool = False
    bits: int = 8
    # Of a TIFF: 0 is white.
    white_is_zero: bool = False
    is_signed: bool = False


def read_image_file(content: bytes, name: str) -> ImageFile | None:
    """Return the first image of a file; None if its format is not recognised. `name` identifies it in messages."""
    for prefix, reader in _READERS:
        if content.startswith(prefix):
            return reader(content, name)
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return _read_webp(content, name)
    return None


def _check_pieces(name: str, num_pieces: int, what: str) -> None:
    if num_pieces > MAX_PIECES:
        raise InputError(f"the {name} has more than {MAX_PIECES:,} {what}, the maximum")


# PNG


_PNG_KEPT = {b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"eXIf", b"IEND"}


def _read_png(content: bytes, name: str) -> ImageFile:
    kept, orientation, has_more = [content[:8]], 1, False
    for index, (kind, start, end) in enumerate(_png_chunks(content)):
        _check_pieces(name, index, "chunks")
        if kind in _PNG_KEPT:
            kept.append(content[start:end])
        if kind == b"eXIf":
            orientation = exif_orientation(content[start + 8 : end - 4])
        elif kind == b"acTL":
            has_more = int.from_bytes(content[start + 8 : start + 12], "big") > 1
    bits = content[24] if len(content) > 24 else 8
    return ImageFile("PNG", b"".join(kept), orientation, has_more, bits)


def _png_chunks(content: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield each chunk's kind, start and end."""
    start = 8
    while start + 8 <= len(content):
        end = start + 12 + int.from_bytes(content[start : start + 4], "big")
        yield content[start + 4 : start + 8], start, end
        start = end


# JPEG


# Neither a stuffed byte nor a restart within a scan.
_JPEG_MARKER = re.compile(rb"\xff+([\x01-\xcf\xd8-\xfe])", re.DOTALL)
_SOI, _EOI, _SOS, _COM = 0xD8, 0xD9, 0xDA, 0xFE
_APP0, _APP1, _APP2, _APP14 = 0xE0, 0xE1, 0xE2, 0xEE


def _read_jpeg(content: bytes, name: str) -> ImageFile:
    """Keep what comes before the first scan without comments and metadata, and all from there on."""
    check_scans(content, name)
    file, kept, has_exif, has_gain_map = ImageFile("JPEG", b""), [content[:2]], False, False
    for marker, start, first, end in _jpeg_segments(content):
        if marker == _SOS:
            kept.append(content[start:])
            break
        if marker == _APP1 and content.startswith(b"Exif\0", first) and not has_exif:
            has_exif, file.orientation = True, exif_orientation(content[first + 6 : end])
        elif marker == _APP1 and content.find(b"hdrgm:", first, end) >= 0:
            has_gain_map = True
        elif marker == _APP2 and content.startswith(b"MPF\0", first):
            file.has_more = not has_gain_map
        if marker in (_APP0, _APP14) or not _APP0 <= marker <= _COM:
            kept.append(content[start:end])
    file.content = b"".join(kept)
    return file


def check_scans(content: bytes, name: str) -> None:
    """Raise `InputError` for a JPEG of more scans than an encoder writes: each passes over all pixels."""
    num_scans = num_pixels = 0
    for index, (marker, _, first, _) in enumerate(_jpeg_segments(content)):
        _check_pieces(name, index, "segments")
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", content[first + 1 : first + 5].ljust(4, b"\0"))
            num_pixels = height * width
        num_scans += marker == _SOS
        if num_scans > MAX_SCANS or num_scans * num_pixels > MAX_SCANNED_PIXELS:
            raise InputError(
                f"the {name} has {num_scans} scans or more of {num_pixels:,} pixels; the maximum is {MAX_SCANS} scans "
                f"and {MAX_SCANNED_PIXELS >> 20} Mi pixels in all of them",
                hint="save it as a JPEG that is not progressive",
            )


def _jpeg_segments(content: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield each segment's marker, start, the start of its content, and end."""
    position = 2
    while found := _JPEG_MARKER.search(content, position):
        marker, position = found[1][0], found.end()
        if marker == _EOI:
            return
        if marker not in (0x01, _SOI):
            position += int.from_bytes(content[position : position + 2], "big")
        yield marker, found.start(), found.end() + 2, position


# GIF


def _read_gif(content: bytes, name: str) -> ImageFile:
    """Drop comments and other extensions, and look for a second frame."""
    position = 13 + _gif_colours(content, 10)
    kept, frames, num_pieces = [content[:position]], 0, 0
    while frames < 2 and position < len(content) and content[position] in b"!,":
        start, is_frame = position, content[position] == ord(",")
        frames += is_frame
        position += 11 + _gif_colours(content, position + 9) if is_frame else 2
        while position < len(content) and content[position]:
            position += 1 + content[position]
            num_pieces += 1
            _check_pieces(name, num_pieces // 5, "blocks")
        position += 1
        if frames == is_frame and (is_frame or content[start + 1 : start + 2] == b"\xf9"):
            kept.append(content[start:position])
    return ImageFile("GIF", b"".join(kept) + b";", has_more=frames > 1)


def _gif_colours(content: bytes, position: int) -> int:
    """Return the number of bytes of the colour table that the flags at `position` announce."""
    flags = content[position] if position < len(content) else 0
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


# WebP and BMP


def _read_webp(content: bytes, name: str) -> ImageFile:
    file, position, num_frames = ImageFile("WEBP", content), 12, 0
    for index in itertools.count():
        _check_pieces(name, index, "chunks")
        kind = content[position : position + 4]
        num_bytes = int.from_bytes(content[position + 4 : position + 8], "little")
        if len(kind) < 4:
            break
        if kind == b"EXIF":
            exif = content[position + 8 : position + 8 + num_bytes]
            file.orientation = exif_orientation(exif.removeprefix(b"Exif\0\0"))
        num_frames += kind == b"ANMF"
        position += 8 + num_bytes + num_bytes % 2
    file.has_more = num_frames > 1
    return file


def _read_bmp(content: bytes, name: str) -> ImageFile:
    if len(content) > MAX_BMP_RLE_BYTES and int.from_bytes(content[30:34], "little") in (1, 2):
        raise InputError(
            f"the {name} has more than {MAX_BMP_RLE_BYTES >> 20} MiB with run-length encoding, the maximum",
            hint="save it as PNG",
        )
    return ImageFile("BMP", content)


def _read_tiff(content: bytes, name: str) -> ImageFile:
    page = first_page(content, name, MAX_PIECES)
    return ImageFile(
        "TIFF",
        page.content,
        page.orientation,
        page.has_more,
        page.bits,
        white_is_zero=page.white_is_zero,
        is_signed=page.is_signed,
    )


_READERS: tuple[tuple[bytes | tuple[bytes, ...], Callable[[bytes, str], ImageFile]], ...] = (
    (b"\x89PNG\r\n\x1a\n", _read_png),
    (b"\xff\xd8\xff", _read_jpeg),
    (b"GIF8", _read_gif),
    (b"BM", _read_bmp),
    (TIFF_PREFIXES, _read_tiff),
)
