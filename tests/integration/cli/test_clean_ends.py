"""Every end of a run, at any time: the right exit code, no traceback, whole files, nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import time
import wave
from collections.abc import Callable
from pathlib import Path

import pytest
from support.omni_process import ROOT, SHORT, Ended, OmniProcess, run_omni
from support.samples import sample

OK, FAILED, INTERRUPTED = 0, 6, 130

pytestmark = pytest.mark.slow

# Parts of the time that a whole run takes, from the first line of omni's own code on; and the moment in which its
# stages have begun to load, which needs no other run to be timed.
LOADING = "loading"
MOMENTS = sample([0.0, 0.01, 0.04, 0.1, 0.25, 0.4, 0.55, 0.7, 0.85, 0.95, LOADING], [LOADING])


@pytest.fixture(scope="module")
def run_s(tmp_path_factory: pytest.TempPathFactory) -> float:
    """Duration of a whole run with its imports, in seconds."""
    ended = run_omni(tmp_path_factory.mktemp("whole"), "generate", "hi", *SHORT, "--json", warm=False)
    ended.check_clean()
    assert (ended.code, ended.output_files) == (OK, ("0.wav",))
    return ended.seconds


@pytest.fixture
def wait_for_moment(request: pytest.FixtureRequest) -> Callable[[OmniProcess, float | str], None]:
    def wait(process: OmniProcess, moment: float | str) -> None:
        if moment == LOADING:
            process.wait_for(lambda: len(stage_processes(process)) == len(STAGES))
            return
        run_s: float = request.getfixturevalue("run_s")
        process.wait_until_begun()
        time.sleep(float(moment) * run_s)

    return wait


def check_interrupted(ended: Ended) -> None:
    """Either the run finished or it reports the interrupt, with or without a document; files are whole."""
    ended.check_clean()
    if ended.code != OK:
        ended.check_error(INTERRUPTED, "error: interrupted")
    if ended.out:
        document = ended.document
        finished = [result["status"] for result in document.get("results", ())] == ["ok"]
        assert finished == (ended.code == OK)
    assert ended.output_files in ((), ("0.wav",))


def check_wave(path: Path) -> None:
    with wave.open(str(path)) as file:
        assert file.getnframes() > 0
        assert len(file.readframes(file.getnframes())) == 2 * file.getnframes()


@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_at_any_moment(moment: float | str, wait_for_moment: Callable, folder: Path) -> None:
    process = OmniProcess(folder, "generate", "hi", *SHORT, "--json")
    wait_for_moment(process, moment)
    process.interrupt()
    ended = process.end()
    check_interrupted(ended)
    for name in ended.output_files:
        check_wave(process.output / name)


@pytest.mark.parametrize("moment", sample([0.2, 0.6], []))
def test_sigterm(moment: float, run_s: float, folder: Path) -> None:
    """As a service manager sends it, to the command alone."""
    process = OmniProcess(folder, "generate", "hi", *SHORT, "--json")
    process.wait_until_begun()
    time.sleep(moment * run_s)
    process.popen.terminate()
    check_interrupted(process.end())


@pytest.mark.parametrize("moment", sample([0.15, 0.7, LOADING], [LOADING]))
def test_sigkill_of_the_command(moment: float | str, wait_for_moment: Callable, folder: Path) -> None:
    # It takes longer than a whole short run, however busy the machine was when that was timed.
    long = ("--set", "thinker.sampling.max_tokens=1500", "--set", "thinker.sampling.ignore_eos=true")
    process = OmniProcess(folder, "generate", "hi", *long, warm=moment == LOADING)
    wait_for_moment(process, moment)
    process.popen.kill()
    ended = process.end()
    ended.check_clean()
    assert ended.code == -signal.SIGKILL


# The first request is short, the others stay in the first stage for seconds, which is when the run is ended.
REQUESTS = [
    {"request_id": "short", "prompt": "hi", "sampling": {"max_tokens": 2}},
    {"request_id": "long", "prompt": "hello", "sampling": {"max_tokens": 1500, "ignore_eos": True}},
    {"request_id": "longer", "prompt": "hello world", "sampling": {"max_tokens": 1600, "ignore_eos": True}},
]
STAGES = ("thinker", "talker", "token2wav")


@pytest.fixture
def requests_run(folder: Path) -> OmniProcess:
    """Start a run of `REQUESTS` and return when the first has ended."""
    (folder / "requests.jsonl").write_text("".join(json.dumps(line) + "\n" for line in REQUESTS))
    short_speech = ("--set", "talker.sampling.max_tokens=16")
    process = OmniProcess(folder, "generate", "--requests", "requests.jsonl", "--json", *short_speech, warm=True)
    process.wait_for((process.output / "short.wav").exists)
    return process


def stage_processes(process: OmniProcess) -> list[int]:
    """Return process ids in the order of the stages: each leads a session, and they start in order."""
    return sorted(pid for pid in process.others() if leads_a_session(pid))


def leads_a_session(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:  # it has just ended
        return False


def test_ctrl_c_keeps_finished_requests(requests_run: OmniProcess) -> None:
    requests_run.interrupt()
    ended = requests_run.end()
    ended.check_clean()
    assert ended.code == INTERRUPTED
    results = {result["request_id"]: result for result in ended.document["results"]}
    assert [result["status"] for result in results.values()] == ["ok", "error", "error"]
    assert {results[name]["message"] for name in ("long", "longer")} == {"interrupted"}
    assert ended.output_files == ("short.wav",)
    check_wave(requests_run.output / "short.wav")


@pytest.mark.parametrize("stage", sample(STAGES, []))
def test_a_stage_that_is_killed(stage: str, requests_run: OmniProcess) -> None:
    processes = dict(zip(STAGES, stage_processes(requests_run), strict=True))
    os.kill(processes[stage], signal.SIGKILL)
    ended = requests_run.end()
    ended.check_clean()
    assert ended.code == FAILED
    results = {result["request_id"]: result for result in ended.document["results"]}
    assert [result["status"] for result in results.values()] == ["ok", "error", "error"]
    assert ended.err.count("error:") == 2
    for name in ("long", "longer"):
        assert results[name]["message"] == f"stage `{stage}`: its process was killed (SIGKILL)"
        # The outputs of earlier stages are kept.
        assert [output["type"] for output in results[name]["outputs"]] == ([] if stage == "thinker" else ["text"])
    assert ended.output_files == ("short.wav",)
    check_wave(requests_run.output / "short.wav")


@pytest.mark.nightly
def test_a_stage_that_is_killed_while_it_loads(folder: Path) -> None:
    process = OmniProcess(folder, "generate", "hi", *SHORT, "--json")
    pids = process.wait_for(lambda: len(found := stage_processes(process)) == len(STAGES) and found)
    os.kill(pids[1], signal.SIGKILL)
    ended = process.end()
    ended.check_clean()
    ended.check_error(FAILED, "error: stage `talker`: its process was killed (SIGKILL)")
    assert ended.document["error"]["stage"] == "talker"
    assert ended.output_files == ()


def build_begun(place: Path) -> bool:
    """Return True if the folder has a partial file of a build."""
    return any(any(partial.iterdir()) for partial in place.glob(".*.partial-*"))


@pytest.mark.parametrize("how", sample([signal.SIGINT, signal.SIGTERM, signal.SIGKILL], []))
def test_an_end_while_a_built_in_model_is_built(how: signal.Signals, folder: Path) -> None:
    cache = folder / "cache"
    process = OmniProcess(folder, "generate", "hi", "--json", environment={"XDG_CACHE_HOME": str(cache)})
    place = cache / "omni-cli" / "checkpoints"
    process.wait_for(lambda: build_begun(place))
    if how == signal.SIGKILL:
        process.popen.kill()
    else:
        process.interrupt(how)
    ended = process.end()
    ended.check_clean()
    assert ended.output_files == ()
    left = [path.name for path in place.iterdir() if not path.name.endswith(".lock")]
    assert left == []
    if how == signal.SIGKILL:
        assert ended.code == -signal.SIGKILL
    else:
        ended.check_error(INTERRUPTED, "error: interrupted")


@pytest.mark.parametrize("delay_s", sample([0.0, 0.3, None], [None]))
def test_ctrl_c_during_models_build(delay_s: float | None, folder: Path) -> None:
    """At fixed times, and (None) when the first files exist."""
    process = OmniProcess(folder, "models", "build", "tiny-omni", "--output-dir", "out/model")
    process.wait_until_begun()
    if delay_s is None:
        process.wait_for(lambda: build_begun(process.output))
    else:
        time.sleep(delay_s)
    process.interrupt()
    ended = process.end()
    ended.check_clean()
    ended.check_error(INTERRUPTED, "error: interrupted")
    assert ended.output_files == ()
    assert not (process.output / "model").exists()


_SWALLOWS = """
import os, signal, sys, time

class Swallows:
    def find_spec(self, name, path=None, target=None):
        if name == "LIBRARY":
            sys.meta_path.remove(self)
            try:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(10)
            except BaseException:
                pass

sys.meta_path.insert(0, Swallows())
"""


PROFILES = ("profiles", "list", "--json")


@pytest.mark.parametrize(
    ("library", "arguments"),
    sample(
        [
            ("tokenizers", ("models", "build", "tiny-omni", "--output-dir", "out/model")),
            ("psutil", ("generate", "hi", "--profile", "tiny-image")),
            ("numpy", ("bench", "--profile", "tiny-image", "--output-json", "out/record.json")),
            ("yaml", PROFILES),
        ],
        [("yaml", PROFILES)],
    ),
)
def test_an_interrupt_that_a_library_swallows_is_not_lost(
    folder: Path, tmp_path: Path, library: str, arguments: tuple[str, ...]
) -> None:
    """While it is imported, for instance."""
    (tmp_path / "sitecustomize.py").write_text(_SWALLOWS.replace("LIBRARY", library))
    environment = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    ended = run_omni(folder, *arguments, environment=environment)
    ended.check_clean()
    ended.check_error(INTERRUPTED, "error: interrupted")
    assert ended.output_files == ()


@pytest.mark.nightly
def test_a_folder_for_temporary_files_may_have_a_long_name(tmp_path: Path) -> None:
    """Names of sockets have at most 107 bytes."""
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    ended = run_omni(folder, "generate", "hi", "--profile", "tiny-image")
    ended.check_clean()
    assert (ended.code, ended.output_files) == (OK, ("0.png",)), ended.err
