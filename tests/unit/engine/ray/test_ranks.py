"""A stage with ranks on Ray: rejected before anything starts if vLLM or the installation cannot run it."""

from __future__ import annotations

import pytest

from omni_cli.cli.app import run
from omni_cli.core.errors import ExitCode, UsageError
from omni_cli.engine.devices import check_ray, has_cuda_device


def test_with_a_device_and_ray_nothing_is_refused() -> None:
    check_ray("thinker", has_device=True, has_ray=True)


def test_without_ray_the_extra_is_named() -> None:
    with pytest.raises(UsageError, match=r"stage `thinker`: .* needs Ray, which is not installed") as caught:
        check_ray("thinker", has_device=True, has_ray=False)
    assert caught.value.hint is not None and "omni-cli[ray]" in caught.value.hint


@pytest.mark.skipif(has_cuda_device(), reason="this machine has what the test says that it lacks")
def test_on_a_cpu_vllms_sentence_is_the_commands_one_error(capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["generate", "--set", "thinker.distributed_executor_backend=ray", "hello"])
    printed = capsys.readouterr()
    assert code == ExitCode.USAGE and printed.out == ""
    assert printed.err == (
        "tiny-omni has random weights: what it makes has no meaning\n"
        "error: stage `thinker`: `distributed_executor_backend: ray` needs CUDA devices, and this machine has none; "
        "vLLM says: current platform cpu does not support ray.\n\n"
        "hint: --set thinker.distributed_executor_backend=mp\n"
    )
