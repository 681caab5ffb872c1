"""Read the tags of TIFF files, and of EXIF, which has the same structure."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from omni_cli.errors import InputError

TIFF_PREFIXES = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+", b"MM*\0", b"II\0*")

# What decides the pixels. All others, such as EXIF, further pages and thumbnails, are left out.
_KEPT = {
    256, 257, 258, 259, 262, 266, 273, 277, 278, 279, 284, 292, 293, 317, 320, 322, 323, 324, 325, 332, 338, 339, 347,
    512, 513, 514, 515, 517, 518, 519, 520, 521, 529, 530, 531, 532,
}  # fmt: skip
_WIDTH, _HEIGHT, _BITS, _PHOTOMETRIC, _ORIENTATION, _SAMPLES, _PLANES = 256, 257, 258, 262, 274, 277, 284
_STRIPS, _STRIP_ROWS, _TILE_WIDTH, _TILE_ROWS, _TILES, _SAMPLE_FORMAT = 273, 278, 322, 323, 324, 339
# By the type of a tag's value.
_LETTERS = {1: "B", 3: "H", 4: "I", 16: "Q"}


@dataclass(frozen=True)
class TiffPage:
    """The first image of a TIFF file; `content` holds it alone, and without `white_is_zero`."""

    content: bytes
    orientation: int
    has_more: bool
    bits: int
    white_is_zero: bool
    is_signed: bool


def exif_orientation(exif: bytes) -> int:
    """Return EXIF's number for how an image is turned or mirrored, 1 to 8."""
    return _Tags(exif).number(_ORIENTATION, range(1, 9)) if exif[:2] in (b"II", b"MM") else 1


def first_page(content: bytes, name: str, max_pieces: int) -> TiffPage:
    """Keep the first image of a TIFF file, with the tags that decide its pixels.

    Raises `InputError` for more strips or tiles than the image has room for, or than `max_pieces`: Pillow decodes all.
    """
    tags = _Tags(content)
    white_is_zero = _PHOTOMETRIC in tags.entries and tags.number(_PHOTOMETRIC) == 0
    if white_is_zero:
        # Pillow inverts some kinds and not others. With this change it inverts none.
        tags.set_number(_PHOTOMETRIC, 1)
    num_pieces = max((tags.entries[tag].count for tag in (_STRIPS, _TILES) if tag in tags.entries), default=0)
    if num_pieces > min(max_pieces, _num_places(tags)):
        raise InputError(f"the {name} has {num_pieces:,} strips or tiles, more than it has room for")
    if any(tags.entries[tag].count > max_pieces for tag in _KEPT & tags.entries.keys()):
        raise InputError(f"the {name} has a tag of more than {max_pieces:,} values, the maximum")
    return TiffPage(
        tags.without_others(_KEPT),
        tags.number(_ORIENTATION, range(1, 9)),
        tags.has_more,
        tags.number(_BITS),
        white_is_zero,
        tags.number(_SAMPLE_FORMAT) == 2,
    )


def _num_places(tags: _Tags) -> int:
    """Return the number of strips or tiles that cover the image."""
    width, height = tags.number(_WIDTH), tags.number(_HEIGHT)
    piece_width, piece_rows = (
        (tags.number(_TILE_WIDTH), tags.number(_TILE_ROWS))
        if _TILES in tags.entries
        else (width, tags.number(_STRIP_ROWS) if _STRIP_ROWS in tags.entries else height)
    )
    planes = tags.number(_SAMPLES) if tags.number(_PLANES) == 2 else 1
    return planes * -(-width // max(piece_width, 1)) * -(-height // max(piece_rows, 1))


@dataclass
class _Entry:
    kind: int
    count: int
    raw: bytes


class _Tags:
    """The tags of the first image: the first entry of each, unchanged."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._order = "<" if content[:2] == b"II" else ">"
        # BigTIFF has larger numbers.
        is_big = b"+" in content[2:4]
        self._offset, self._count = ("Q", "Q") if is_big else ("I", "H")
        self._value_at, entry_bytes = (12, 20) if is_big else (8, 12)
        self._start = self._read(self._offset, 8 if is_big else 4)
        first = self._start + struct.calcsize(self._count)
        num_entries = min(self._read(self._count, self._start), 65_535)
        self.entries: dict[int, _Entry] = {}
        for at in range(first, min(first + num_entries * entry_bytes, len(content) - entry_bytes + 1), entry_bytes):
            entry = _Entry(self._read("H", at + 2), self._read(self._offset, at + 4), content[at : at + entry_bytes])
            self.entries.setdefault(self._read("H", at), entry)
        self.has_more = self._read(self._offset, first + num_entries * entry_bytes) != 0

    def number(self, tag: int, wanted: range | None = None) -> int:
        """Return a tag's first whole number; 1 if it has none, or none that is wanted."""
        entry = self.entries.get(tag)
        if entry is None or entry.kind not in _LETTERS or entry.count < 1:
            return 1
        letter = _LETTERS[entry.kind]
        size = struct.calcsize(letter)
        if entry.count * size > len(entry.raw) - self._value_at:
            number = self._read(letter, struct.unpack_from(self._order + self._offset, entry.raw, self._value_at)[0])
        else:
            (number,) = struct.unpack_from(self._order + letter, entry.raw, self._value_at)
        return number if wanted is None or number in wanted else 1

    def set_number(self, tag: int, number: int) -> None:
        """Change the value of a tag that has one."""
        entry = self.entries[tag]
        raw = bytearray(entry.raw)
        struct.pack_into(self._order + _LETTERS[entry.kind], raw, self._value_at, number)
        entry.raw = bytes(raw)

    def without_others(self, kept: set[int]) -> bytes:
        """Return the content with no other tags than `kept`, and no further image."""
        entries = [entry.raw for tag, entry in self.entries.items() if tag in kept]
        table = struct.pack(self._order + self._count, len(entries)) + b"".join(entries)
        table += bytes(struct.calcsize(self._offset))
        return self._content[: self._start] + table + self._content[self._start + len(table) :]

    def _read(self, letter: str, position: int) -> int:
        size = struct.calcsize(letter)
        number: int
        (number,) = struct.unpack(self._order + letter, self._content[position : position + size].ljust(size, b"\0"))
        return number
