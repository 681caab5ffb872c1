"""Find files that are shorter than their headers say, which a demuxer accepts silently."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Literal

from omni_cli.errors import InputError

_MAX_CHUNKS = 10_000
# Sizes from here on stand for an unknown one: writers that cannot seek back use 2**31 - 1, 2**32 - 1 or a little less,
# SoX in AIFF 0x7F000000 and the bytes of a header.
_UNKNOWN_BYTES = 0x7F00_0000
# Behind the end of any file; a system may refuse to seek further.
_FAR = 2**40
# A size of all ones, in any of the lengths that EBML has for a size: not known when it was written.
_EBML_UNKNOWN = {2 ** (7 * length) - 1 for length in range(1, 9)}
_EBML_HEAD, _EBML_SEGMENT = b"\x1a\x45\xdf\xa3", b"\x18\x53\x80\x67"


def check_whole(content: BinaryIO, name: str) -> None:
    """Raise `InputError` if a chunk that holds sound or frames goes on after the end of the file."""
    size = content.seek(0, io.SEEK_END)
    start, head = beginning(content)
    if head[:4] == _EBML_HEAD:
        chunks = _matroska_segment(content)
    elif layout := _LAYOUTS.get((head[:4], head[8:])):
        chunks = layout.chunks(content, start)
    elif head[:4] == b"RF64":
        chunks = iter([(start + 8, int.from_bytes(_read(content, start + 20, 8), "little"))])
    else:
        # MP4's boxes may come in any order. Other formats end where a first box would have to.
        chunks = _boxes(content)
    for position, num_bytes in chunks:
        if position + num_bytes > size:
            raise InputError(f"the {name} is truncated: it ends before the end that its header gives")


def beginning(content: BinaryIO) -> tuple[int, bytes]:
    """Return where a file begins behind its ID3v2 tags, and its first 12 bytes."""
    start = 0
    while (head := _read(content, start, 12))[:3] == b"ID3":
        start += 10 + sum((byte & 0x7F) << shift for byte, shift in zip(head[6:10], (21, 14, 7, 0), strict=False))
    return start, head


def _read(content: BinaryIO, position: int, num_bytes: int) -> bytes:
    content.seek(position)
    return content.read(num_bytes)


def _boxes(content: BinaryIO) -> Iterator[tuple[int, int]]:
    """Yield the starts and sizes of an MP4 or MOV file's boxes that it cannot be decoded without."""
    position = 0
    for _ in range(_MAX_CHUNKS):
        head = _read(content, position, 16)
        num_bytes, kind = int.from_bytes(head[:4], "big"), head[4:8]
        if num_bytes == 1:
            num_bytes = int.from_bytes(head[8:], "big")
        if num_bytes < 8 or not kind.isalnum():  # 0: up to the end
            return
        if kind in (b"moov", b"mdat", b"moof"):
            yield position, num_bytes
        position = min(position + num_bytes, _FAR)


def _matroska_segment(content: BinaryIO) -> Iterator[tuple[int, int]]:
    _, head_bytes, first = _ebml_element(content, 0)
    kind, num_bytes, first = _ebml_element(content, first + head_bytes)
    if kind == _EBML_SEGMENT and num_bytes not in _EBML_UNKNOWN:
        yield first, num_bytes


def _ebml_element(content: BinaryIO, position: int) -> tuple[bytes, int, int]:
    """Return an element's kind, the number of its bytes, and where they begin; kinds here have four bytes."""
    head = _read(content, position, 12).ljust(12, b"\0")
    length = 9 - head[4].bit_length()
    num_bytes = int.from_bytes(head[4 : 4 + length], "big") & (2 ** (7 * length) - 1)
    return head[:4], num_bytes, position + 4 + length


@dataclass(frozen=True)
class _Layout:
    """A file of chunks: a kind, a size, and the bytes."""

    start: int
    kind_bytes: int
    size_bytes: int
    order: Literal["little", "big"]
    # The chunk that holds the sound or the frames; all others are passed over.
    wanted: bytes
    head_is_counted: bool = False
    alignment: int = 2

    def chunks(self, content: BinaryIO, start: int) -> Iterator[tuple[int, int]]:
        position, head_bytes = start + self.start, self.kind_bytes + self.size_bytes
        for _ in range(_MAX_CHUNKS):
            head = _read(content, position, head_bytes)
            num_bytes = int.from_bytes(head[self.kind_bytes :], self.order)
            if self.head_is_counted:
                num_bytes -= head_bytes
            if len(head) < head_bytes or num_bytes < 0:
                return
            position += head_bytes
            if head.startswith(self.wanted) and num_bytes < _UNKNOWN_BYTES:
                yield position, num_bytes
            position = min(position + -(-num_bytes // self.alignment) * self.alignment, _FAR)


# By the bytes at the start and those at 8.
_LAYOUTS = {
    (b"RIFF", b"WAVE"): _Layout(12, 4, 4, "little", b"data"),
    (b"RIFX", b"WAVE"): _Layout(12, 4, 4, "big", b"data"),
    (b"FORM", b"AIFF"): _Layout(12, 4, 4, "big", b"SSND"),
    (b"FORM", b"AIFC"): _Layout(12, 4, 4, "big", b"SSND"),
    (b"RIFF", b"AVI "): _Layout(0, 4, 4, "little", b"RIFF"),
    (b"caff", b"desc"): _Layout(8, 4, 8, "big", b"data", alignment=1),
    (b"riff", b"\xa5\xd6\x28\xdb"): _Layout(40, 16, 8, "little", b"data", head_is_counted=True, alignment=8),
}
