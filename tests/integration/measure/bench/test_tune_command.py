"""The real `omni tune`: real stages in real processes, its files, and an interrupt."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.omni_process import OmniProcess, run_omni

from omni_cli.config.loader import load_profile
from omni_cli.records.tune_record import load_tune_record

pytestmark = pytest.mark.slow

QUICK = ("tune", "--profile", "tiny-image", "--num-iters", "1", "--num-iters-warmup", "0")


@pytest.mark.nightly
def test_the_answer_is_a_profile_and_one_document(tmp_path: Path) -> None:
    """CUDA graphs are refused before anything starts, so that one start of the other setting decides."""
    tuned = tmp_path / "tuned"
    ended = run_omni(tmp_path, *QUICK, "--search", "execution=eager,cudagraph", "--json", "--output-dir", str(tuned))
    assert ended.code == 0, ended.err
    ended.check_clean()
    document = ended.document
    assert (document["schema"], document["verdict"], document["winner"]) == (
        "omni.tune/2",
        "decided",
        "execution=eager",
    )
    states = {item["name"]: item["state"] for item in document["standings"]}
    assert states == {"execution=eager": "best", "execution=cudagraph": "infeasible"}
    assert load_profile(str(tuned / "profile.yaml")).stage("image").execution == "eager"
    ((batch,),) = load_tune_record(tuned / "tune.json").rounds[0].batches
    assert batch.samples[0].e2e_s > 0 and batch.memory.peak_host_rss_bytes


def test_a_searched_argument_that_the_pipeline_ignores_is_named(tmp_path: Path) -> None:
    ended = run_omni(tmp_path, *QUICK, "--search", "guidance_scale=1,7", "--time-budget", "1", "--output-dir", "tuned")
    assert ended.code == 3
    kept = [variant for batch in load_tune_record(tmp_path / "tuned/tune.json").rounds[0].batches for variant in batch]
    for variant in kept[1:]:
        (note,) = variant.effective["notes"]
        assert "but ignored" in note and ended.err.count(f"warning: variant `{variant.name}`: {note}") == 1


@pytest.mark.nightly
def test_an_interrupted_search_continues(tmp_path: Path) -> None:
    first, second, path = tmp_path / "first", tmp_path / "second", tmp_path / "tuned" / "tune.json"
    first.mkdir()
    second.mkdir()
    words = (*QUICK, "--search", "num_inference_steps=1,40", "--margin", "20%", "--output-dir", str(path.parent))
    process = OmniProcess(first, *words, warm=True)
    process.wait_for(lambda: path.exists() and load_tune_record(path).rounds)
    process.interrupt()
    ended = process.end()
    assert ended.code == 130 and "error: interrupted" in ended.err, ended.err
    ended.check_clean()
    kept = load_tune_record(path)
    assert kept.starts >= 2 and kept.verdict == "unfinished"
    ended = run_omni(second, *words)
    assert ended.code == 0, ended.err
    assert "continuing" in ended.err
    record = load_tune_record(path)
    # One step or the profile's four: single cold iterations hardly tell them apart.
    assert record.winner in ("num_inference_steps=1", "profile as it is")
    assert record.rounds[: len(kept.rounds)] == kept.rounds
