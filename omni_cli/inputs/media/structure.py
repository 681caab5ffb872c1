"""Check the sizes and counts that a container declares, before a library believes them."""

from __future__ import annotations

import io
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, Literal

from omni_cli.errors import InputError

# Frames and the like that a table may declare; a decoder allocates for each before it reads one.
MAX_ENTRIES = 1_000_000
_MAX_CHUNKS = 10_000
# Sizes from here on stand for an unknown one: writers that cannot seek back use 2**31 - 1, 2**32 - 1 or a little less.
_UNKNOWN_BYTES = 0x7FFF_0000
_MP4_PARENTS = {b"moov", b"trak", b"mdia", b"minf", b"dinf", b"stbl", b"edts", b"udta", b"mvex", b"moof", b"traf"}
# What a file cannot be decoded without, so that it is truncated where one of these ends after it.
_MP4_CONTENT = {b"moov", b"mdat", b"moof"}
# A size of all ones, in any of the lengths that EBML has for a size: not known when it was written.
_EBML_UNKNOWN = {2 ** (7 * length) - 1 for length in range(1, 9)}
_EBML_HEAD, _EBML_SEGMENT = b"\x1a\x45\xdf\xa3", b"\x18\x53\x80\x67"


def check_structure(content: BinaryIO, name: str) -> None:
    """Raise `InputError` for a file that ends early, or whose tables would fill the memory.

    A decoder would pass over the missing end without a word.
    """
    size = content.seek(0, io.SEEK_END)
    head = _read(content, 0, 12)
    if head[:4] == _EBML_HEAD:
        _check_matroska(content, name, size)
    elif chunks := _CHUNKS.get((head[:4], head[8:])):
        chunks.check(content, name, size)
    else:
        # Its boxes may come in any order. Other formats end where a first box would have to.
        _Mp4(content, name).check(0, size)


def _read(content: BinaryIO, position: int, num_bytes: int) -> bytes:
    content.seek(position)
    return content.read(num_bytes)


def _truncated(name: str) -> InputError:
    return InputError(f"the {name} is truncated: it ends before the end that its header gives")


class _Mp4:
    """The boxes of an MP4 or MOV file."""

    def __init__(self, content: BinaryIO, name: str) -> None:
        self._content = content
        self._name = name
        self._num_boxes = 0
        self._num_samples = 0
        self._track = _Mp4Track()

    def check(self, start: int, end: int, depth: int = 0) -> None:
        """Check all boxes between two positions."""
        for kind, first, after in self._boxes(start, end):
            if after > end:
                if depth == 0 and kind in _MP4_CONTENT:
                    raise _truncated(self._name)
                return
            if kind == b"cmov":
                raise InputError(f"the {self._name} has a compressed header, which is not read")
            track = self._track
            if kind == b"trak":
                self._track = _Mp4Track()
            if kind in _MP4_PARENTS and depth < 8:
                self.check(first, after, depth + 1)
            else:
                self._table(kind, first, after)
            if kind == b"trak":
                self._num_samples += self._track.num_entries
                self._track = track
            if max(self._num_samples, self._num_boxes) > MAX_ENTRIES:
                raise InputError(f"the {self._name} has more than {MAX_ENTRIES:,} frames and boxes, the maximum")

    def _boxes(self, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
        """Yield kinds, the positions of contents and the positions after them."""
        while end - start >= 8:
            head = _read(self._content, start, 16)
            size, kind, first = int.from_bytes(head[:4], "big"), head[4:8], start + 8
            if size == 1:
                size, first = int.from_bytes(head[8:16], "big"), start + 16
            elif size == 0:
                size = end - start
            if start + size < first:
                return
            self._num_boxes += 1
            yield kind, first, start + size
            start += size

    def _table(self, kind: bytes, first: int, after: int) -> None:
        import numpy as np

        body = _read(self._content, first, min(after - first, 32)).ljust(32, b"\0")
        track = self._track
        match kind:
            case b"hdlr":
                track.handlers.add(body[8:12])
            case b"elst":
                track.note(num_edits=struct.unpack_from(">I", body, 4)[0])
            case b"stts":
                count, _, duration = struct.unpack_from(">III", body, 4)
                track.durations.add((count, duration))
            case b"stsz" | b"stz2":
                track.note(num_samples=struct.unpack_from(">I", body, 8)[0])
            case b"stsc":
                runs = np.frombuffer(_read(self._content, first + 8, max(after - first - 8, 0) // 12 * 12), ">u4")
                track.note(chunk_samples=int(runs[1::3].max(initial=0)))
            case b"stco" | b"co64":
                track.note(num_chunks=struct.unpack_from(">I", body, 4)[0])
            case b"trun":
                self._num_samples += struct.unpack_from(">I", body, 4)[0]


@dataclass
class _Mp4Track:
    """The numbers that the tables of a track declare; of tables that are there twice the larger ones."""

    handlers: set[bytes] = field(default_factory=set)
    durations: set[tuple[int, int]] = field(default_factory=set)
    numbers: Counter[str] = field(default_factory=Counter)

    def note(self, **numbers: int) -> None:
        self.numbers |= Counter(numbers)

    @property
    def num_entries(self) -> int:
        """Entries of the index that libav builds: parts of chunks for PCM, else every sample, again for each edit."""
        # MOV has a second handler, for the place of the data.
        if self.handlers - {b"url ", b"alis"} == {b"soun"} and self.durations == {(1, 1)}:
            return self.numbers["num_chunks"] * (1 + self.numbers["chunk_samples"] // 1024)
        return self.numbers["num_samples"] * max(1, self.numbers["num_edits"] // 10)


def _check_matroska(content: BinaryIO, name: str, size: int) -> None:
    _, head_bytes, first = _ebml_element(content, 0)
    kind, num_bytes, first = _ebml_element(content, first + head_bytes)
    if kind == _EBML_SEGMENT and num_bytes not in _EBML_UNKNOWN and first + num_bytes > size:
        raise _truncated(name)


def _ebml_element(content: BinaryIO, position: int) -> tuple[bytes, int, int]:
    """Return an element's kind, the number of its bytes, and where they begin; kinds here have four bytes."""
    head = _read(content, position, 12).ljust(12, b"\0")
    length = 9 - head[4].bit_length()
    num_bytes = int.from_bytes(head[4 : 4 + length], "big") & (2 ** (7 * length) - 1)
    return head[:4], num_bytes, position + 4 + length


@dataclass(frozen=True)
class _Chunks:
    """The layout of a file of chunks: a kind, a size, and the bytes."""

    start: int
    kind_bytes: int
    size_bytes: int
    order: Literal["little", "big"]
    # The chunk that holds the sound or the frames; all others are passed over.
    wanted: bytes
    head_is_counted: bool = False
    alignment: int = 2

    def check(self, content: BinaryIO, name: str, size: int) -> None:
        """Raise `InputError` if the wanted chunk goes on after the end of the file."""
        position, head_bytes = self.start, self.kind_bytes + self.size_bytes
        for _ in range(_MAX_CHUNKS):
            head = _read(content, position, head_bytes)
            num_bytes = int.from_bytes(head[self.kind_bytes :], self.order)
            if self.head_is_counted:
                num_bytes -= head_bytes
            if len(head) < head_bytes or num_bytes < 0:
                return
            position += head_bytes
            if head.startswith(self.wanted) and size < position + num_bytes and num_bytes < _UNKNOWN_BYTES:
                raise _truncated(name)
            position += -(-num_bytes // self.alignment) * self.alignment


# By the bytes at the start and those at 8.
_CHUNKS = {
    (b"RIFF", b"WAVE"): _Chunks(12, 4, 4, "little", b"data"),
    (b"RIFF", b"AVI "): _Chunks(0, 4, 4, "little", b"RIFF"),
    (b"caff", b"desc"): _Chunks(8, 4, 8, "big", b"data", alignment=1),
    (b"riff", b"\xa5\xd6\x28\xdb"): _Chunks(40, 16, 8, "little", b"data", head_is_counted=True, alignment=8),
}
