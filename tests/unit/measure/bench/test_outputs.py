"""Outputs of two variants: equality, and the size of differences."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from omni_cli.measure.bench.outputs import hash_arrays, load_arrays, output_arrays, save_arrays
from omni_cli.requests.outputs import AudioOutput, ImageOutput, RequestResult, StageTrace, TextOutput
from omni_cli.stats.output_quality import max_abs_difference


def result(*outputs, tokens: tuple[int, ...] = (1, 2)) -> RequestResult:
    return RequestResult("0", outputs, (StageTrace("t", "ar", 0.1, output_token_ids=tokens),))


def audio(*samples: float) -> AudioOutput:
    return AudioOutput(np.array(samples, np.float32), 24_000)


def test_equal_outputs_have_equal_hashes() -> None:
    first = output_arrays([result(TextOutput("a", (1, 2), "length"), audio(0.5, -0.5))])
    again = output_arrays([result(TextOutput("a", (1, 2), "length"), audio(0.5, -0.5))])
    assert set(first) == {"0.tokens.t", "0.audio.1"}
    assert hash_arrays(first) == hash_arrays(again)


@pytest.mark.parametrize(
    "other",
    [
        [result(audio(0.5, -0.5), tokens=(1, 3))],
        [result(audio(0.5, -0.25))],
        [result(audio(0.5))],
        [result(ImageOutput(np.zeros((1, 1, 3), np.uint8)))],
        [result(audio(0.5, -0.5)), result(audio(0.5, -0.5))],
    ],
)
def test_anything_that_differs_changes_the_hash(other: list[RequestResult]) -> None:
    assert hash_arrays(output_arrays([result(audio(0.5, -0.5))])) != hash_arrays(output_arrays(other))


def difference(folder: Path, a: RequestResult, b: RequestResult) -> float | None:
    for name, item in (("a", a), ("b", b)):
        save_arrays(folder / name, output_arrays([item]))
    return max_abs_difference(load_arrays(folder / "a"), load_arrays(folder / "b"))


def test_largest_difference(tmp_path: Path) -> None:
    assert difference(tmp_path, result(audio(0.5, -0.5)), result(audio(0.5, -0.5))) == 0
    assert difference(tmp_path, result(audio(0.5, -0.5)), result(audio(0.25, -0.5))) == 0.25
    white = ImageOutput(np.full((1, 1, 3), 255, np.uint8))
    black = ImageOutput(np.zeros((1, 1, 3), np.uint8))
    assert difference(tmp_path, result(white), result(black)) == 255


def test_other_tokens_and_other_lengths_have_no_distance(tmp_path: Path) -> None:
    assert difference(tmp_path, result(audio(1.0)), result(audio(1.0), tokens=(1, 3))) is None
    assert difference(tmp_path, result(audio(1.0)), result(audio(1.0, 1.0))) is None
    assert load_arrays(tmp_path / "missing") is None
