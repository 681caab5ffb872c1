"""The requests that stages run before they are ready."""

from __future__ import annotations

import pytest
from support.answers import answer_of
from support.omni_process import run_omni
from support.tiny_models import llama

from omni_cli.engine.devices import has_cuda_device


@pytest.mark.nightly
@pytest.mark.parametrize("profile", ["tiny-omni", "tiny-qwen3-omni", "tiny-csm"])
def test_every_stage_finishes_its_warm_up_requests(profile, tmp_path):
    stages = answer_of("warm_ups", {"profile": profile}, tmp_path, timeout_s=400)
    assert stages
    codec = {"tiny-omni": "token2wav", "tiny-qwen3-omni": "code2wav", "tiny-csm": "codec"}[profile]
    reports, again, is_left = stages.pop(codec)
    assert reports == again and not is_left and "Failure" not in reports
    # Whole, one at a time or up to four at once, and streamed.
    assert reports.count("RequestDone") == (2 if codec == "token2wav" else 1 + 2 + 3 + 4 + 1)
    assert reports.count("AudioChunk") > 2
    for reports, of_two, is_left in stages.values():
        assert reports.count("RequestDone") == 1 + 2 + 4 + 8  # batches up to max_num_seqs
        assert "Failure" not in reports
        assert of_two.count("RequestDone") == 1 + 2
        assert not is_left


@pytest.mark.skipif(has_cuda_device(), reason="a GPU has these kernels")
def test_a_kernel_that_a_cpu_lacks_is_found_while_loading(tmp_path):
    """vLLM raises it when attention first runs, in the engine's step, which would end the stage."""
    folder = llama(tmp_path / "model", head_dim=16)
    (tmp_path / "run").mkdir()
    ended = run_omni(tmp_path / "run", "serve", "--model", str(folder), "--port", "0")
    ended.check_clean()
    assert ended.code == 6 and ended.out == "", ended.out
    assert ended.err.count("error: ") == 1 and "could not load" in ended.err, ended.err
    assert "Unsupported CPU attention configuration: head_dim=16" in ended.err
