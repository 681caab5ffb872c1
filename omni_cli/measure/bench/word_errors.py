"""Words of answers against the words that they should have, counted in a process of its own, which may need torch."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np

from omni_cli.core.compat.libraries import prepare_libraries
from omni_cli.measure.bench.quality import QualityWeightsError, Transcribe, make_transcriber
from omni_cli.stats.word_errors import count_word_errors

Sound = tuple[np.ndarray, int]
Utterance = tuple[str, str | Sound]
"""The text that an answer should have, and its text, or its samples with their rate."""


class WordJudge:
    """Counts the wrong words of answers; `known` are those of answers so far: what is equal is heard once."""

    def __init__(self, process: ProcessPoolExecutor, folder: str) -> None:
        self._process = process
        self._folder = folder
        self.known: dict[str, dict[str, float]] = {}

    def judge(self, answers: Sequence[Utterance]) -> list[dict[str, float]]:
        """Return the errors of each answer as `count_word_errors`. Raises `QualityWeightsError` if hearing fails."""
        keys = [_hash(answer) for answer in answers]
        new = {key: answer for key, answer in zip(keys, answers, strict=True) if key not in self.known}
        try:
            found = self._process.submit(_count, self._folder, list(new.values())).result()
        except Exception as error:
            hint = "check the weights of `--quality wer=FOLDER`"
            raise QualityWeightsError(f"cannot measure wer: {error or type(error).__name__}", hint=hint) from error
        self.known |= zip(new, found, strict=True)
        return [self.known[key] for key in keys]


@contextmanager
def start_word_judge(folder: str | None) -> Iterator[WordJudge | None]:
    """Start the process for the Whisper in `folder`, "" for answers of text, and load it, so that this takes no time
    from requests; nothing for None. Raises `QualityWeightsError`."""
    if folder is None:
        yield None
        return
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_keep_quiet) as process:
        judge = WordJudge(process, folder)
        judge.judge([])
        yield judge


def _hash(answer: Utterance) -> str:
    expected, said = answer
    content = said.encode() if isinstance(said, str) else f"{said[1]} {said[0].shape}".encode() + said[0].tobytes()
    return hashlib.sha256(expected.encode() + b"\0" + content).hexdigest()


def _keep_quiet() -> None:
    """Keep what libraries print out of the command's output, and leave signals to the command: it has answers left."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    prepare_libraries()


def _end_with_parent() -> None:
    """End if the command was killed: its end of the queue is open in this process, too, which would wait for good."""
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)


@cache
def _load(folder: str) -> tuple[Callable[[str], str], Transcribe | None]:
    """Load Whisper's normaliser of English (lower case, no punctuation, numbers as digits), and the model, if any."""
    from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

    spellings = Path(folder, "normalizer.json")
    normalise = EnglishTextNormalizer(json.loads(spellings.read_text()) if spellings.is_file() else {})
    return normalise, make_transcriber(Path(folder)) if folder else None


def _count(folder: str, answers: Sequence[Utterance]) -> list[dict[str, float]]:
    normalise, transcribe = _load(folder)
    sounds = [said for _, said in answers if not isinstance(said, str)]
    heard = iter(transcribe(sounds) if transcribe else ())
    texts = [said if isinstance(said, str) else next(heard) for _, said in answers]
    pairs = zip(answers, texts, strict=True)
    return [count_word_errors(normalise(expected).split(), normalise(text).split()) for (expected, _), text in pairs]
