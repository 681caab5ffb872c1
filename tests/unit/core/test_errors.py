"""Errors on their way from one process to another."""

import pickle

import pytest

from omni_cli.core.errors import DeadlineError, InputError, OmniError, StageError


@pytest.mark.parametrize(
    "error",
    [
        OmniError("it failed", hint="try again"),
        InputError("no such file"),
        DeadlineError("too late"),
        StageError("it ended", stage="talker", request_id="7", hint="h", details="frames"),
    ],
)
def test_an_error_is_the_same_in_another_process(error: OmniError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
