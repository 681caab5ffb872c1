"""Damage to msgpack bytes: anywhere, and in headers."""

from __future__ import annotations

import random
from collections.abc import Sequence

# Headers of collections, texts and bytes with counts that nothing behind them makes good, and odd values.
HEADERS = [
    b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff",
    b"\xdd\x00\x10\x00\x00", b"\xdf\x00\x10\x00\x00", b"\xdd\x7f\xff\xff\xff", b"\xdc\xff\xff", b"\xde\xff\xff",
    b"\xc5\xff\xff", b"\xda\xff\xff", b"\x9f", b"\x8f", b"\xbf", b"\x90", b"\x80", b"\xa0", b"\xc0", b"\xc1",
    b"\xc2", b"\xc3", b"\xc4\x00", b"\xc7\x05\x01", b"\xc9\xff\xff\xff\xff\x01", b"\xd6\xff\x00\x00\x00\x00", b"\xff",
    b"\xcf" + b"\xff" * 8, b"\xd3\x80" + b"\x00" * 7, b"\xcb\x7f\xf8" + b"\x00" * 6, b"\x91" * 60,
    b"\x81\xa1x" * 40, b"\xa3\xed\xa0\x80", b"\xa2\xff\xfe",
]  # fmt: skip


def damaged(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """One of `seeds` after one to four cuts, insertions, overwritten bytes, or with the end of another."""
    raw = rng.choice(seeds)
    for _ in range(rng.randint(1, 4)):
        at = int(rng.random() * (len(raw) + 1))
        # The first bytes hold the structure, the rest is mostly data.
        if rng.random() < 0.6:
            at = min(at, int(rng.random() * 64))
        how = int(rng.random() * 8)
        if how <= 1 and raw:
            at %= len(raw)
            raw = raw[:at] + bytes([raw[at] ^ (1 << int(rng.random() * 8))]) + raw[at + 1 :]
        elif how == 2 and raw:
            raw = raw[:at] + bytes([int(rng.random() * 256)]) + raw[at + 1 :]
        elif how == 3:
            header = rng.choice(HEADERS)
            raw = raw[:at] + header + raw[at + (len(header) if rng.random() < 0.5 else 1) :]
        elif how == 4:
            raw = raw[:at]
        elif how == 5:
            raw = raw[:at] + raw[at + rng.randint(1, 8) :]
        elif how == 6:
            raw = raw[:at] + raw[at : at + rng.randint(1, 16)] * 2 + raw[at:]
        else:
            other = rng.choice(seeds)
            raw = raw[:at] + other[int(rng.random() * len(other)) :]
    return raw
