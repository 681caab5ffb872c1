"""`omni profile` on the built-in models: its trace, its record, planted costs, and its failures."""

from __future__ import annotations

import collections
import functools
import gzip
import itertools
import json
import re
import resource
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.omni_process import Ended, OmniProcess, run_omni
from support.omni_requests import FEW_STEPS

from omni_cli.records.profile_record import Profile, StageProfile, load_profile_record
from omni_cli.requests.encoding import encode_png, encode_wav
from omni_cli.stats.estimate import TRIM

pytestmark = pytest.mark.slow

OK, USAGE, INTERRUPTED = 0, 2, 130
OMNI_ITERS = 2
MIB = 2**20
TAIL_US = 100_000
ENCODERS = ("thinker.visual", "thinker.audio_tower")
_MODULES = frozenset(f"module {name}" for name in ENCODERS)


@dataclass(eq=False)
class Run:
    """A finished run and its files: `events` are omni's own in the trace, `operator_times_us` (begin, end) of all
    operators in it, which are too many to keep, and `calls` the calls of modules in it."""

    ended: Ended
    record: Profile
    document: dict[str, Any]
    events: list[dict[str, Any]]
    operator_times_us: list[tuple[float, float]]
    calls: collections.Counter[str]

    def stage(self, name: str) -> StageProfile:
        return {stage.name: stage for stage in self.record.stages}[name]

    @functools.cached_property
    def _tracks(self) -> dict[str, list[dict[str, Any]]]:
        names = {
            (event["pid"], event["tid"]): event["args"]["name"]
            for event in self.events
            if event["ph"] == "M" and event["name"] == "thread_name"
        }
        tracks: dict[str, list[dict[str, Any]]] = collections.defaultdict(list)
        for event in self.events:
            if event["ph"] == "X":
                tracks[names[event["pid"], event["tid"]]].append(event)
        return tracks

    def track(self, name: str) -> list[dict[str, Any]]:
        """Return the events on one of omni's own tracks, in order."""
        return sorted(self._tracks[name], key=lambda event: (event["ts"], -event["dur"]))


def profile(folder: Path, name: str, *arguments: str, **options: Any) -> Run:
    ended = run_omni(folder, "profile", "-p", name, *arguments, **options)
    ended.check_clean()
    assert ended.code == OK, ended.err
    return read(folder, ended)


def read(folder: Path, ended: Ended) -> Run:
    written = folder / "out" / "profile"
    trace = json.loads(gzip.decompress((written / "trace.json.gz").read_bytes()))
    record = load_profile_record(written / "profile.json")
    document = json.loads((written / "profile.json").read_text())
    events = trace["traceEvents"]
    return Run(
        ended,
        record,
        document,
        [event for event in events if event["ph"] == "M" or event.get("cat") == "omni"],
        [(event["ts"], event["ts"] + event["dur"]) for event in events if event.get("cat") == "cpu_op"],
        collections.Counter(event["name"].removeprefix("module ") for event in events if event["name"] in _MODULES),
    )


@pytest.fixture(scope="module")
def image(planted_profile: tuple[Path, Ended]) -> Run:
    return read(*planted_profile)


@pytest.fixture(scope="module")
def omni(tmp_path_factory: pytest.TempPathFactory) -> Run:
    arguments = ("--num-iters", str(OMNI_ITERS), "--output-len", "12", "--set", FEW_STEPS, "--json")
    return profile(tmp_path_factory.mktemp("omni"), "tiny-omni", *arguments)


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """tiny-qwen3-omni, with an image and a second of audio in the prompt."""
    inputs = tmp_path_factory.mktemp("inputs")
    (inputs / "image.png").write_bytes(encode_png(np.zeros((56, 84, 3), np.uint8)))
    (inputs / "sound.wav").write_bytes(encode_wav(np.zeros(16_000, np.float32), 16_000))
    requests = inputs / "requests.jsonl"
    requests.write_text('{"prompt": "What is this?", "image": "image.png", "audio": "sound.wav"}')
    arguments = (str(requests), "--num-iters", "1", "--output-len", "12")
    return profile(tmp_path_factory.mktemp("spoken"), "tiny-qwen3-omni", *arguments)


@pytest.fixture(params=["image", "omni"])
def run(request: pytest.FixtureRequest) -> Run:
    return request.getfixturevalue(request.param)


def test_every_stage_and_step_is_in_the_trace(image: Run, omni: Run) -> None:
    iterations = image.record.num_iters
    assert count(image.track("image"), "engine step") == iterations == 5
    for number in range(1, 5):
        assert count(image.track("image"), f"denoising step {number}") == iterations
    for name in ("text encode", "vae decode", "output copy"):
        assert count(image.track("image"), name) == iterations
    for stage in ("thinker", "talker"):
        for name in ("engine step", "model forward", "sampling"):
            assert count(omni.track(stage), name) == 12 * OMNI_ITERS
    assert count(omni.track("thinker"), "output copy") == 12 * OMNI_ITERS, "each step's hidden states"
    for number in range(1, 4):
        assert count(omni.track("token2wav"), f"denoising step {number}") == OMNI_ITERS
    assert count(omni.track("token2wav"), "vocoder") == OMNI_ITERS
    assert count(omni.track("connectors"), "thinker -> talker") == OMNI_ITERS
    assert count(omni.track("connectors"), "talker -> token2wav") == OMNI_ITERS


def count(events: list[dict[str, Any]], name: str) -> int:
    return sum(event["name"] == name for event in events)


def test_ranges_are_nested(run: Run) -> None:
    """On each track, events nest, and steps lie within their stage's request."""
    for stage in run.record.stages:
        for track in (stage.name, f"{stage.name}: requests", "iterations", "connectors"):
            check_nested(run.track(track))
        requests = run.track(f"{stage.name}: requests")
        assert len(requests) == run.record.num_iters
        for event in run.track(stage.name):
            if event["name"] == "engine step":
                middle = event["ts"] + event["dur"] / 2
                assert any(r["ts"] <= middle <= r["ts"] + r["dur"] for r in requests), event


def check_nested(events: list[dict[str, Any]]) -> None:
    opened: list[float] = []
    for event in events:
        while opened and opened[-1] <= event["ts"]:
            opened.pop()
        end = event["ts"] + event["dur"]
        assert not opened or end <= opened[-1] + 0.001, event
        opened.append(end)


def test_times_in_the_trace_are_those_of_the_record(run: Run) -> None:
    """A recorded centre is the geometric mean of the iterations whose differences are not trimmed, within 2 %."""
    tracks = {f"{stage.name}.latency_s": f"{stage.name}: requests" for stage in run.record.stages}
    for metric, track in (tracks | {"e2e_s": "iterations"}).items():
        stated = next(row for row in run.record.overhead if row.metric == metric)
        traced_s = [event["dur"] / 1e6 for event in run.track(track)]
        kept = itertools.combinations(traced_s, len(traced_s) - 2 * int(TRIM * len(traced_s)))
        # Which ones are kept depends on the unprofiled iterations beside them, too, which the trace does not have.
        assert any(statistics.geometric_mean(each) == pytest.approx(stated.profiled_s, rel=0.02) for each in kept)


def test_stage_times_add_up(run: Run) -> None:
    seconds = run.record.stage_seconds
    assert sum(seconds.values()) == pytest.approx(run.record.e2e_s, rel=1e-6)
    assert {stage.name for stage in run.record.stages} <= seconds.keys()
    tracks = [*(f"{stage.name}: requests" for stage in run.record.stages), "connectors"]
    parts = [event for track in tracks for event in run.track(track)]
    shares = [
        sum(part["dur"] for part in parts if 0 <= part["ts"] - whole["ts"] < whole["dur"]) / whole["dur"]
        for whole in run.track("iterations")
    ]
    assert max(shares) > 0.8, "of the iteration that other programs disturbed the least"
    for stage in run.record.stages:
        spans = [span for span in run.record.request if span.track == stage.name]
        (request,) = (span for span in spans if span.depth == 0)
        end_s = request.start_s + request.duration_s
        # What happens in it, one after the other, makes up a request's time. token2wav sends a waveform when it is
        # finished, before the end of its step; reports follow after that.
        parts_s = sum(
            min(span.start_s + span.duration_s, end_s) - span.start_s
            for span in spans
            if span.depth == 1 and span.start_s < end_s
        )
        assert parts_s == pytest.approx(request.duration_s, rel=0.05, abs=0.005), stage.name


def test_operators_have_modules_and_lie_on_the_common_axis(run: Run) -> None:
    end_us = max(event["ts"] + event["dur"] for event in run.track("iterations"))
    assert len(run.operator_times_us) > 1000
    # A stage that has sent its result may have a last operator to run while the command ends the iteration; a
    # clock that is not the common one would be off by much more.
    assert all(begin >= -1 and end <= end_us + TAIL_US for begin, end in run.operator_times_us)
    late = sum(end > end_us for _, end in run.operator_times_us)
    assert late < 0.01 * len(run.operator_times_us)
    for stage in run.record.stages:
        modules = {row.module for row in stage.operators}
        assert any("*" in module for module in modules), "modules that repeat are one kind"
        assert sum(row.fraction for row in stage.operators) <= 1.0001


def test_activity_and_limits_are_plausible(run: Run) -> None:
    for stage in run.record.stages:
        activity = stage.activity
        assert 0.05 < activity.busy_fraction <= 1
        assert activity.busy_fraction + activity.idle_fraction == pytest.approx(1)
        idle_s = max(0.0, activity.capacity_s - activity.busy_s)
        assert sum(activity.idle_s.values()) == pytest.approx(idle_s, rel=0.2, abs=0.02)
        assert stage.launch_gaps is not None and 0 < stage.launch_gaps.fraction_of_steps < 1
        assert stage.roofline is not None
        assert 0 < stage.roofline.fraction < 1, "nothing is faster than the machine"
        assert stage.roofline.flops > 1e6 and stage.roofline.moved_bytes > 1e5


def test_memory_phases_from_loading_to_a_request(run: Run) -> None:
    for stage in run.record.stages:
        memory = stage.memory
        names = [phase.name for phase in memory.phases]
        assert {"load", "load weights", "first request"} <= set(names)
        assert any(name.startswith(("denoising step", "model forward")) for name in names)
        assert all(earlier.at_s <= later.at_s for earlier, later in itertools.pairwise(memory.timeline))
        assert memory.peak_bytes == max(phase.peak_host_rss_bytes for phase in memory.phases)
        assert {tensor.kind for tensor in memory.largest} <= {"weight", "cache", "activation"}


def test_budget_of_the_kv_cache(omni: Run) -> None:
    for name in ("thinker", "talker"):
        (budget,) = omni.stage(name).memory.budgets
        assert budget.what == "KV cache" and budget.budget_bytes == 64 * MIB
        assert 0 < budget.used_bytes < MIB


def test_work_of_an_ar_stage_by_its_formula(omni: Run) -> None:
    """Twice a matrix's weights for every token that passes it, computed independently here."""
    roofline = omni.stage("thinker").roofline
    tokens, layers, hidden, heads, kv_heads, head_size = 32 + 11, 2, 128, 4, 2, 32
    part = next(part for part in roofline.parts if part.module.endswith("self_attn.qkv_proj"))
    rows = (heads + 2 * kv_heads) * head_size
    assert part.flops == 2 * layers * hidden * rows * tokens
    assert part.moved_bytes == 4 * layers * hidden * rows * 12, "weights once per step"


def test_experts_and_a_code_predictor_by_hand(spoken: Run) -> None:
    layers, hidden, heads, kv_heads, head_size, steps = 4, 128, 4, 2, 32, 12
    roofline = spoken.stage("thinker").roofline
    assert "encoders of images, audio and video" in roofline.omitted
    parts = {part.module.removeprefix("thinker.language_model.model.layers.*."): part for part in roofline.parts}
    tokens = parts["self_attn.qkv_proj"].flops / (2 * layers * hidden * (heads + 2 * kv_heads) * head_size)
    assert tokens == int(tokens) > 40, "text, image, sound, and 11 tokens of the answer"
    expert = 3 * hidden * 64
    experts = parts["mlp.experts.routed_experts"]
    assert experts.flops == 2 * layers * 2 * expert * tokens, "two of the four"
    assert experts.moved_bytes == pytest.approx(4 * layers * expert * (4 + 2 * (steps - 1)), rel=1e-6)

    layers, hidden, codes = 2, 96, 8
    parts = {part.module: part for part in spoken.stage("talker").roofline.parts}
    stacked = parts["talker.code_predictor.model.layers.*.self_attn.qkv_proj"]
    weights = layers * hidden * (heads + 2 * kv_heads) * head_size
    assert stacked.flops == 2 * weights * codes * steps
    assert stacked.moved_bytes == 4 * weights * (codes - 1) * steps, "a pass for each code but the first"


def test_the_stages_of_a_chain_with_frames_of_codes(spoken: Run) -> None:
    assert count(spoken.track("talker"), "code predictor") == 12
    assert count(spoken.track("connectors"), "thinker -> talker") == 1
    assert all(spoken.calls[encoder] == 1 for encoder in ENCODERS), "no iteration takes from another's cache"
    predictor = next(one for one in spoken.stage("talker").ranges if one.name == "code predictor")
    assert 0.1 < predictor.fraction < 1
    codec = spoken.stage("code2wav")
    assert codec.roofline.flops > 1e6 and not codec.roofline.omitted[1:]
    assert not any("execution" in hint.advice for hint in spoken.record.hints), "a codec has no other"


def test_a_wait_in_one_step_is_found(image: Run) -> None:
    steps = image.stage("image").steps
    assert [step.number for step in steps if step.outlier] == [3]
    assert steps[2].median_s - steps[2].usual_s > 0.015
    assert any("denoising step 3 takes" in hint.message for hint in image.record.hints)
    assert "outlier: denoising step 3" in image.ended.out


def test_memory_held_in_one_phase_is_found(image: Run) -> None:
    memory = image.stage("image").memory
    assert memory.peak_phase.startswith("vae decode")
    most = max((phase for phase in memory.phases if phase.name != "first request"), key=lambda one: one.added_bytes)
    assert most.name == "vae decode" and 200 * MIB <= most.added_bytes < 260 * MIB
    largest = memory.largest[0]
    assert largest.size_bytes == 200 * MIB and largest.where.startswith("vae decode")
    assert any(hint.message.startswith("vae decode holds 2") for hint in image.record.hints)
    assert "in vae decode" in image.ended.out


def test_a_copy_too_many_is_found(image: Run) -> None:
    place = image.stage("image").copies.places[0]
    assert (place.range, place.operator) == ("text encode", "aten::clone")
    assert 32 * MIB <= place.copied_bytes < 33 * MIB
    assert re.search(r"text encode +aten::clone", image.ended.out)


def test_an_argument_that_the_pipeline_ignores_is_named(tmp_path: Path) -> None:
    run = profile(tmp_path, "tiny-image", "--set", "image.guidance_scale=7", "--num-iters", "1")
    (note,) = run.record.notes
    assert "guidance_scale is passed as 7.0, but ignored" in note and run.ended.err.count(f"warning: {note}") == 1


def test_json_prints_the_record(omni: Run) -> None:
    assert omni.ended.document == omni.document
    assert omni.document["schema"] == "omni.profile/1"
    assert "warning" not in omni.ended.err and "error" not in omni.ended.err


@pytest.mark.nightly
def test_inputs_of_a_middle_stage_are_recorded_first(tmp_path: Path) -> None:
    ended = run_omni(tmp_path, "profile", "--stage", "talker", "--num-iters", "1", "--output-len", "4", "--json")
    ended.check_clean()
    assert ended.code == OK, ended.err
    assert [stage["name"] for stage in ended.document["stages"]] == ["talker"]
    (overhead, _) = ended.document["overhead"]
    assert overhead["ratio"] > 0 and overhead["ci95"] is None, "one iteration has no interval"


def test_interrupt_while_recording(tmp_path: Path) -> None:
    process = OmniProcess(tmp_path, "profile", "-p", "tiny-image", "--num-iters", "1000", warm=True)
    working = process.output / "profile"
    # Its stage has left a trace: it is in the middle of profiling.
    process.wait_for(lambda: list(working.glob(".omni-profile-*/image-0.json")) if working.is_dir() else None)
    process.interrupt()
    ended = process.end()
    ended.check_clean()
    ended.check_error(INTERRUPTED, "interrupted")
    assert ended.output_files == () and not working.exists()


@pytest.mark.nightly
def test_a_disk_that_fills_up(tmp_path: Path) -> None:
    """Files are limited to 64 KiB, which is too little for a trace."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, 64 << 10))

    ended = run_omni(tmp_path, "profile", "-p", "tiny-image", "--num-iters", "1", preexec_fn=limit)
    ended.check_clean()
    ended.check_error(USAGE, "could not save the trace of stage `image`", "--output-dir")
    assert ended.output_files == ()


@pytest.fixture
def unwritable(tmp_path: Path) -> Path:
    place = tmp_path / "file"
    place.write_text("not a folder")
    return place


def test_refusals_come_before_anything_starts(tmp_path: Path, unwritable: Path) -> None:
    ended = run_omni(make(tmp_path / "a"), "profile", "--stage", "tinker")
    ended.check_error(USAGE, "unknown stage `tinker`", "thinker")
    assert not ended.started_others
    ended = run_omni(make(tmp_path / "b"), "profile", "--output-dir", str(unwritable))
    ended.check_error(USAGE, "cannot write", "--output-dir")
    assert not ended.started_others


def make(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.mark.nightly
def test_a_model_in_a_separate_process_is_reported_and_gets_no_hint_about_gaps(tmp_path: Path) -> None:
    rank = ("--stage", "thinker", "--set", "thinker.distributed_executor_backend=mp")
    ended = run_omni(tmp_path, "profile", *rank, "--num-iters", "1", "--output-dir", str(tmp_path / "out"))
    assert ended.code == OK, ended.err
    assert "its model runs in 1 separate process, which the profiler does not see" in " ".join(ended.out.split())
    assert "operator runs" not in ended.out
    (stage,) = load_profile_record(tmp_path / "out" / "profile.json").stages
    assert stage.launch_gaps is None and stage.roofline is None
    ended.check_clean()
