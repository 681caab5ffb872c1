"""A wait for a copy polls its event for a moment, and sleeps then."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from omni_cli.backends.execution import copies


class Event:
    """Done after so many questions, or when somebody sleeps until it is."""

    def __init__(self, done_after: int) -> None:
        self.left, self.slept = done_after, 0

    def query(self) -> bool:
        self.left -= 1
        return self.left < 0

    def synchronize(self) -> None:
        self.slept += 1
        self.left = 0


@pytest.mark.parametrize(("done_after", "slept"), [(0, 0), (5, 0), (10_000, 1)])
def test_only_what_takes_longer_than_the_spin_is_slept_for(
    monkeypatch: pytest.MonkeyPatch, done_after: int, slept: int
) -> None:
    now_s = iter(number * copies._SPIN_S / 10 for number in range(100))
    monkeypatch.setattr(copies, "time", SimpleNamespace(perf_counter=lambda: next(now_s)))
    event = Event(done_after)
    copies._CudaTransfer(event, event, SimpleNamespace()).wait()
    assert event.slept == slept
