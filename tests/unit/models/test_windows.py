"""The end of a transcript at a stop string."""

from __future__ import annotations

from omni_cli.core.compat.libraries import prepare_libraries  # isort: skip

prepare_libraries()

import numpy as np  # noqa: E402
import pytest  # noqa: E402

from omni_cli.models.transcription.windows import Transcription, up_to_end  # noqa: E402
from omni_cli.requests.contents import Word  # noqa: E402
from omni_cli.requests.outputs import GenerateRequest  # noqa: E402

WORDS = ("And", "so,", "my", "fellow")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("And so, my fellow", WORDS),
        ("And so, my fel", ("And", "so,", "my", "fel")),
        ("And so", ("And", "so")),
        ("And ", ("And",)),
        ("", ()),
    ],
)
def test_parts_end_with_the_text(text: str, expected: tuple[str, ...]) -> None:
    words = [Word(number, number + 0.5, word) for number, word in enumerate(WORDS)]
    found = list(up_to_end(words, text))
    assert tuple(word.text for word in found) == expected
    assert [word.start_s for word in found] == [*range(len(expected))]


@pytest.mark.parametrize(("keeps_stop", "expected"), [(False, "one"), (True, "one two")])
def test_nothing_comes_after_a_stop_string(keeps_stop: bool, expected: str) -> None:
    whole = Transcription(GenerateRequest("a"), [], "en", 0.0, np.zeros(1), 16_000)
    whole.stops, whole.keeps_stop = (" two",), keeps_stop
    for more in ("one", " two three", " four"):
        whole.text += whole.cut_at_stop(more)
    assert whole.text == expected and whole.is_stopped
