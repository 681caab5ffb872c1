"""A hash that a fork computes during the imports: its value, and what happens without one."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from omni_cli.engine.process import preload
from omni_cli.engine.process.preload import hashed_beside


class Key:
    """A key with a cache, as torch's: the id of the process that computed it."""

    def __init__(self, in_fork: Callable[[], object] = lambda: None) -> None:
        self._parent, self._in_fork = os.getpid(), in_fork
        self._cache: list[bytes] = []

    def __call__(self) -> bytes:
        if not self._cache:
            if os.getpid() != self._parent:
                self._in_fork()
            self._cache.append(str(os.getpid()).encode())
        return self._cache[0]

    def set(self, value: bytes) -> None:
        assert not self._cache
        self._cache.append(value)


@pytest.fixture(autouse=True)
def forks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The forks of a test, which end with it."""
    forked: list[int] = []
    usual = os.fork

    def fork() -> int:
        forked.append(usual())
        return forked[-1]

    monkeypatch.setattr(os, "fork", fork)
    yield forked
    assert len(forked) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(forked[0], 0)


def test_the_fork_computes_it_and_this_process_keeps_the_value(forks: list[int]) -> None:
    key = Key()
    with hashed_beside(key):
        pass
    assert [int(key())] == forks


def end() -> None:
    os._exit(1)


def fail() -> None:
    raise MemoryError


@pytest.mark.parametrize("in_fork", [end, fail, lambda: time.sleep(600)], ids=["ends", "fails", "hangs"])
def test_it_is_computed_here_if_the_fork_gives_none(
    in_fork: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preload, "_PATIENCE_S", 0.05)
    key = Key(in_fork)
    with hashed_beside(key):
        pass
    assert int(key()) == os.getpid()


def test_imports_that_fail_end_the_fork_and_wait_for_nothing() -> None:
    key = Key(lambda: time.sleep(600))
    with pytest.raises(ImportError), hashed_beside(key):
        raise ImportError
    assert key._cache == []


def test_a_process_that_ignores_its_children_has_the_value_too() -> None:
    usual = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        key = Key()
        with hashed_beside(key):
            time.sleep(0.1)  # the fork has ended, and is gone
    finally:
        signal.signal(signal.SIGCHLD, usual)
    assert int(key()) != os.getpid()
