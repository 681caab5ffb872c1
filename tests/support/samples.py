"""Cases that differ in degree only: some of them in every run, all of them with `OMNI_ALL_FAULTS=1`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def sample(cases: Sequence[T], some: Sequence[T]) -> list[T]:
    return list(cases if os.environ.get("OMNI_ALL_FAULTS") else some)
