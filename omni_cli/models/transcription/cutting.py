"""Cuts of a long sound for models that write no times, and the seams of what they hear of its pieces."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np

# The part of a window, at its end, in which a pause is looked for.
_STRETCH = 1 / 6
_PAUSE_S = 0.1
# Of the loudest tenth of a second in a piece; quieter is a pause.
_PAUSE_LEVEL = 0.03
# Of the window: what a piece has in common with the next one if there is no pause.
_OVERLAP = 1 / 10
# Words or characters around a seam in which the same ones are looked for.
_SEAM = 40
# A single word in common is one that is hardly ever there by chance.
_MIN_CHARS = 5


@dataclass(frozen=True)
class Cut:
    """A piece of a sound, in samples; one that `overlaps` begins before the end of the piece before."""

    begin: int
    end: int
    overlaps: bool = False


def cut(samples: np.ndarray, rate: int, max_s: float) -> Iterator[Cut]:
    """Yield pieces of at most `max_s` seconds, which end in pauses; where there is none, two pieces overlap."""
    size, begin, overlaps = int(max_s * rate), 0, False
    while len(samples) - begin > size:
        end = begin + size
        pause = find_pause(samples[begin:end], rate)
        yield Cut(begin, end if pause is None else begin + pause, overlaps)
        overlaps = pause is None
        begin = end - int(size * _OVERLAP) if pause is None else begin + pause
    yield Cut(begin, len(samples), overlaps)


def find_pause(samples: np.ndarray, rate: int) -> int | None:
    """Return the middle of the quietest tenth of a second in the last stretch of a window, its end included."""
    step = max(1, int(_PAUSE_S * rate / 4))
    steps = np.square(samples[len(samples) % step :].reshape(-1, step), dtype=np.float32).mean(axis=1)
    if len(steps) < 8:
        return None
    energies = np.lib.stride_tricks.sliding_window_view(steps, 4).mean(axis=1)
    first = int(len(energies) * (1 - _STRETCH))
    # The last of several that are equally quiet.
    quietest = len(energies) - 1 - int(np.argmin(energies[first:][::-1]))
    if energies[quietest] > energies.max() * _PAUSE_LEVEL**2:
        return None
    return len(samples) % step + (quietest + 2) * step


def find_seam(left: str, right: str, *, has_spaces: bool) -> tuple[int, int]:
    """Return where the text of a piece ends and that of the next, overlapping one begins: after the same words.

    Without such words both are whole: nothing is lost.
    """
    unit = r"\S+" if has_spaces else r"\S"
    lefts, rights = list(re.finditer(unit, left))[-_SEAM:], list(re.finditer(unit, right))[:_SEAM]
    ours, theirs = ([re.sub(r"\W", "", match.group()).casefold() for match in each] for each in (lefts, rights))
    run = SequenceMatcher(None, ours, theirs, autojunk=False).find_longest_match()
    if sum(map(len, ours[run.a : run.a + run.size])) < (_MIN_CHARS if run.size < 2 else 2):
        return len(left), 0
    return lefts[run.a + run.size - 1].end(), rights[run.b + run.size - 1].end()
