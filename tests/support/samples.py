"""Cases that differ in degree only: some run always, all with `make test-all`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest


def sample(cases: Sequence[Any], some: Sequence[Any]) -> list[Any]:
    """Mark cases that are not in `some` as `nightly`; a case of several arguments is a tuple."""
    return [case if case in some else _nightly(case) for case in cases]


def _nightly(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.nightly)
