"""Rates of videos, and lengths in seconds as numbers of frames."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace

import pytest

from omni_cli.backends.diffusers.arguments import frame_rate, with_num_frames
from omni_cli.core.errors import InputError
from omni_cli.requests.pipeline_call import Argument, PipelineCall
from omni_cli.requests.value_types import ValueType

INT, FLOAT = (ValueType("int"),), (ValueType("float"),)
FRAMES = {"num_frames": Argument(INT, 81)}
SILENT = PipelineCall("MochiPipeline", FRAMES, ("frames",))
DOCUMENTED = PipelineCall("WanPipeline", FRAMES, ("frames",), Fraction(16))
WITH_RATE = PipelineCall("LTXPipeline", {**FRAMES, "frame_rate": Argument(INT, 25)}, ("frames",))


def test_the_rate_is_that_of_the_request_the_call_the_documentation_or_a_guess_that_is_said() -> None:
    for call, settings, chosen, rate, arguments in (
        (SILENT, {}, "24000/1001", Fraction(24000, 1001), {}),
        (DOCUMENTED, {}, None, Fraction(16), {}),
        (WITH_RATE, {}, None, Fraction(25), {}),
        (WITH_RATE, {"frame_rate": 12}, None, Fraction(12), {}),
        (WITH_RATE, {}, 30.0, Fraction(30), {"frame_rate": 30}),
        (WITH_RATE, {}, "7.5", Fraction(15, 2), {"frame_rate": 7.5}),
    ):
        found = frame_rate(call, settings, chosen)
        assert found is not None and (found.rate, dict(found.arguments), found.note) == (rate, arguments, None)
    guess = frame_rate(SILENT, {}, None)
    assert guess is not None and guess.rate == 10 and guess.note is not None
    assert "MochiPipeline does not say its frame rate" in guess.note and "`fps` sets another" in guess.note
    assert frame_rate(PipelineCall("P", {}, ("images",)), {}, None) is None
    for call, chosen, message in (
        (SILENT, "0", "must be above 0"),
        (SILENT, "fast", "must be a number of frames"),
        (PipelineCall("P", {}, ("images",)), "24", "P makes no video"),
    ):
        with pytest.raises(InputError, match=message):
            frame_rate(call, {}, chosen)


def test_a_length_in_seconds_is_the_nearest_number_of_frames_that_the_pipeline_makes() -> None:
    grouped, free = SimpleNamespace(vae_scale_factor_temporal=4), SimpleNamespace()
    for pipeline, seconds, count in ((grouped, 2.0, 33), (free, 2.0, 32), (grouped, 0.01, 1), (grouped, -1.0, 1)):
        found = with_num_frames({"duration": seconds, "seed": 1}, Fraction(16), pipeline, DOCUMENTED)
        assert found == {"seed": 1, "num_frames": count}
    for wrong, message in (({"num_frames": 5}, "exclude each other"), ({"duration": 1e5}, "the maximum is 100000")):
        with pytest.raises(InputError, match=message):
            with_num_frames({"duration": 2.0, **wrong}, Fraction(16), grouped, DOCUMENTED)
