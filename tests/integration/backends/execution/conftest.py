"""Models of these tests are so small that a second thread would only wait for the first one."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def small_models(one_thread: None) -> None:
    pass
