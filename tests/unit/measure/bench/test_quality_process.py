"""The process that measures outputs by models."""

from __future__ import annotations

import time
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool

import pytest

from omni_cli.measure.bench import quality


def test_an_interrupt_does_not_wait_for_what_is_measured() -> None:
    asked: list[Future[None]] = []
    with pytest.raises(KeyboardInterrupt), quality._start_process() as process:
        asked.append(process.submit(time.sleep, 20))
        raise KeyboardInterrupt
    assert isinstance(asked[0].exception(), BrokenProcessPool), "it was ended, in place of sleeping to its end"


def test_an_error_without_words_is_named() -> None:
    with quality._start_process() as process, pytest.raises(quality.QualityWeightsError, match="wer: MemoryError\n"):
        quality._call(process, "wer", _fail)


def _fail() -> None:
    raise MemoryError
