"""`omni generate --replicas` on a Ray of its own: equal results, nothing lost, nothing done twice, nothing left."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.omni_process import Ended, OmniProcess, run_omni

NUM_REQUESTS = 24
PROFILE = ("--profile", "tiny-image", "--set", "image.num_inference_steps=40")


@pytest.fixture(scope="module")
def requests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Different images, and an invalid line."""
    path = tmp_path_factory.mktemp("requests") / "requests.jsonl"
    lines = [json.dumps({"prompt": f"image {number}", "seed": number}) for number in range(NUM_REQUESTS)]
    path.write_text("\n".join([*lines, '{"prom": 1}']) + "\n")
    return path


@pytest.fixture(scope="module")
def in_one_process(requests: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("one")
    run_omni(folder, "generate", *PROFILE, "--requests", str(requests))
    return images_in(folder / "out")


def images_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.png")}


def command(requests: Path, folder: Path, *arguments: str) -> tuple[str, ...]:
    return (
        "generate",
        *PROFILE,
        "--requests",
        str(requests),
        "--replicas",
        "2",
        "--output-dir",
        str(folder),
        *arguments,
    )


def check_document(ended: Ended, folder: Path, in_one_process: dict[str, bytes]) -> dict[str, Any]:
    """All requests except the bad line are done, and their files equal those of one process, byte for byte."""
    document = ended.document
    statuses = [result["status"] for result in document["results"]]
    assert statuses == ["ok"] * NUM_REQUESTS + ["error"]
    assert ended.code == 2, "of the bad line"
    assert images_in(folder) == in_one_process
    ended.check_clean()
    return document


def replica_processes(running: OmniProcess) -> list[psutil.Process]:
    found = []
    for pid in running.others():
        try:
            if "MapWorker" in " ".join((process := psutil.Process(pid)).cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.nightly
def test_a_replica_that_is_killed_loses_nothing(
    requests: Path, in_one_process: dict[str, bytes], tmp_path: Path
) -> None:
    folder = tmp_path / "images"
    running = OmniProcess(tmp_path, *command(requests, folder, "--json"))
    running.wait_for(lambda: len(list(folder.glob("*.png"))) >= 2)
    replicas = running.wait_for(lambda: len(found := replica_processes(running)) == 2 and found)
    replicas[0].kill()
    document = check_document(running.end(), folder, in_one_process)
    (stage,) = document["stages"]
    assert stage["name"] == "image" and stage["peak_memory_bytes"]["host"] > 0


@pytest.mark.nightly
def test_a_resumed_file_skips_finished_requests(
    requests: Path, in_one_process: dict[str, bytes], tmp_path: Path
) -> None:
    folder = tmp_path / "images"
    (tmp_path / "first").mkdir()
    running = OmniProcess(tmp_path / "first", *command(requests, folder))
    running.wait_for(lambda: len(list(folder.glob("*.png"))) >= 3)
    running.interrupt(signal.SIGINT)
    interrupted = running.end()
    interrupted.check_clean()
    assert interrupted.code == 130, interrupted.err
    done = {line["result"]["request_id"] for line in map(json.loads, (folder / "results.jsonl").open())}
    assert 3 <= len(done) < NUM_REQUESTS
    written = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.png") if path.stem in done}

    (tmp_path / "second").mkdir()
    resumed = run_omni(tmp_path / "second", *command(requests, folder, "--json"))
    assert f"{len(done)} requests of {NUM_REQUESTS} done before" in resumed.err
    check_document(resumed, folder, in_one_process)
    assert {name: (folder / name).stat().st_mtime_ns for name in written} == written, "not made again"

    (tmp_path / "third").mkdir()
    # Nothing is left to do, so no cluster is needed.
    no_cluster = {"RAY_ADDRESS": "127.0.0.1:1"}
    again = run_omni(tmp_path / "third", *command(requests, folder, "--json"), environment=no_cluster)
    check_document(again, folder, in_one_process)
    assert again.document["results"] == resumed.document["results"]


@pytest.mark.nightly
def test_a_model_that_no_replica_can_load_is_one_error(requests: Path, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    ended = run_omni(tmp_path, *command(requests, tmp_path / "out", "--model", str(tmp_path / "model")))
    # Before the bad line of the file is read.
    ended.check_error(2, f"`{tmp_path / 'model'}` is not a checkpoint")
    ended.check_clean()


def test_a_cluster_that_is_not_there(requests: Path, tmp_path: Path) -> None:
    environment = {"RAY_ADDRESS": "127.0.0.1:1"}
    ended = run_omni(tmp_path, *command(requests, tmp_path / "out"), environment=environment)
    assert ended.code == 6, ended.err
    ended.check_clean()
    assert "no Ray cluster answers at `127.0.0.1:1`" in ended.err


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("profile", "limits", "talker"),
    [
        ("tiny-qwen3-omni", ("thinker.sampling.max_tokens=8", "talker.sampling.max_tokens=16"), "talker"),
        ("tiny-csm", ("backbone.sampling.max_tokens=16",), "backbone"),
    ],
)
def test_speech_of_two_replicas_is_that_of_one_process(
    profile: str, limits: tuple[str, ...], talker: str, tmp_path: Path
) -> None:
    """Every code of every request is equal, including sampled ones."""
    sampling = {"temperature": 0.9, "top_k": 20}
    lines = [{"prompt": f"Say {number}.", "seed": number, "sampling": sampling if number % 2 else {}} for number in
             range(8)]  # fmt: skip
    (tmp_path / "requests.jsonl").write_text("\n".join(map(json.dumps, lines)))
    words = [word for key in limits for word in ("--set", key)]
    made: list[list[Any]] = []
    for name, replicas in (("one", ()), ("two", ("--replicas", "2"))):
        (tmp_path / name).mkdir()
        ended = run_omni(
            tmp_path / name, "generate", "--profile", profile, *words, "--json",
            "--requests", str(tmp_path / "requests.jsonl"), *replicas,
        )  # fmt: skip
        assert ended.code == 0, ended.err
        ended.check_clean()
        results = sorted(ended.document["results"], key=lambda result: result["request_id"])
        stages = [stage for result in results for stage in result["stages"] if stage["name"] == talker]
        made.append([stage["output_codes"] for stage in stages])
    assert made[0] == made[1] and len(made[0]) == len(lines)
