"""The free memory in small pieces, and that it is held while variants are loaded."""

from __future__ import annotations

import mmap
from pathlib import Path

import psutil
import pytest

from omni_cli.measure.bench.scattered_memory import filling, scattered_bytes

pytestmark = pytest.mark.skipif(mmap.PAGESIZE != 4096, reason="the pieces of the list are counted in pages")

# 2 pieces of a page, 3 of 2 pages and 1 of 4; then 110 of 4 pages and 5 of 16. Larger ones do not count.
LIST = """Node 0, zone      DMA      2      3      1      0      0      9      9
Node 0, zone   Normal      0      0    110      0      5      7    999
"""


@pytest.fixture
def buddyinfo(tmp_path: Path) -> Path:
    path = tmp_path / "buddyinfo"
    path.write_text(LIST)
    return path


def test_pieces_below_the_limit_are_counted(buddyinfo: Path) -> None:
    assert scattered_bytes(buddyinfo) == (2 + 6 + 4 + 440 + 80) * 4096
    assert scattered_bytes(buddyinfo.parent / "none") == 0


def test_they_are_held_and_given_back(buddyinfo: Path) -> None:
    text = "Node 0, zone Normal 8192 0 0 0 0"
    buddyinfo.write_text(text)
    process = psutil.Process()
    before = process.memory_info().rss
    with filling(2**40, buddyinfo) as held_bytes:
        assert held_bytes == 32 * 2**20
        assert process.memory_info().rss - before > 30 * 2**20
    assert process.memory_info().rss - before < 10 * 2**20


@pytest.mark.parametrize(("available_bytes", "expected"), [(0, 0), (40960, 4096), (100_000, 8192)])
def test_at_most_a_tenth_of_the_available_memory(buddyinfo: Path, available_bytes: int, expected: int) -> None:
    with filling(available_bytes, buddyinfo) as held_bytes:
        assert held_bytes == expected
