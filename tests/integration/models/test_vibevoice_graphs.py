"""VibeVoice's steps in graphs by number of requests, with rows that no request has: the speech of plain calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from omni_cli.core.compat.libraries import prepare_libraries  # isort: skip

prepare_libraries()

import numpy as np  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
from support.fake_graphs import FakeBackend  # noqa: E402
from support.media_samples import tone  # noqa: E402
from support.references import family_reference  # noqa: E402
from support.stage_specs import get_spec  # noqa: E402

from omni_cli.backends.execution.cuda_graphs import RowGraphs  # noqa: E402
from omni_cli.checkpoints.resolve import resolve_model  # noqa: E402
from omni_cli.config.loader import load_profile  # noqa: E402
from omni_cli.models.vibevoice import stage as stage_module  # noqa: E402
from omni_cli.models.vibevoice.branches import BranchCache  # noqa: E402
from omni_cli.models.vibevoice.stage import SpeakerStage  # noqa: E402
from omni_cli.requests.contents import Media  # noqa: E402
from omni_cli.requests.events import AudioChunk  # noqa: E402
from omni_cli.requests.outputs import GenerateRequest  # noqa: E402
from omni_cli.stage.messages import RequestDone  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
NUM_TOKENS = 12
LIMITS = (f"speaker.sampling.max_tokens={NUM_TOKENS}", "speaker.max_num_seqs=5")
# Of the peak, as in `test_vibevoice_reference.py`.
TOLERANCE = 1e-3
REQUESTS = [
    GenerateRequest("hello", "hello", seed=1),
    GenerateRequest("voice", "A day in May.", seed=3, media=Media(audio=(tone(0),))),
    GenerateRequest("long", "Tell me a story about the rain on a tin roof, and then another one. " * 4, seed=6),
]


@pytest.fixture(scope="module")
def references():
    reference = family_reference("tiny-vibevoice", resolve_model("builtin:tiny-vibevoice"), *LIMITS)
    return {request.request_id: reference.speak(request) for request in REQUESTS}


@pytest.fixture(scope="module")
def stage():
    (config,) = load_profile("tiny-vibevoice", LIMITS).stages
    loaded = SpeakerStage(get_spec(config, resolve_model("builtin:tiny-vibevoice")), lambda report: None)
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def backend(stage):
    captured = FakeBackend()
    stage.model.capture_predictor(captured, compiles=False)
    return captured


def speak(stage: SpeakerStage, requests: list[GenerateRequest]) -> dict[str, tuple[list[int], list[np.ndarray]]]:
    """Return the tokens and the parts of the sound of each request."""
    for request in requests:
        stage.add(request)
    spoken: dict[str, Any] = {request.request_id: ([], []) for request in requests}
    while stage.has_work():
        for report in stage.step():
            tokens, parts = spoken[report.request_id]
            if isinstance(report, AudioChunk):
                parts.append(report.samples)
            elif isinstance(report, RequestDone):
                tokens += report.trace["output_token_ids"]
    return spoken


def assert_equal(spoken: tuple[list[int], list[np.ndarray]], reference) -> None:
    tokens, parts = spoken
    assert tokens == list(reference.tokens)
    peak = np.abs(reference.waveform).max()
    np.testing.assert_allclose(np.concatenate(parts), reference.waveform, atol=TOLERANCE * peak, rtol=0)


def test_each_number_of_requests_has_its_graph(stage, backend):
    """Of five requests: 5, 4, 2 and 1 for the head, and 10, 8 and 4 for branches of 128, 512 and 2048 tokens."""
    assert stage.execution_counters["predictor_graphs_captured"] == len(backend.graphs) == 4 + 3 * 3


def test_requests_alone_and_together_equal_the_reference(stage, backend, references):
    """Three requests leave a row of four without one, and later ones have slots that others had."""
    before = stage.execution_counters
    for requests in (REQUESTS[:1], REQUESTS, REQUESTS[1:]):
        batch = [replace(request, request_id=f"{request.request_id} {len(requests)}") for request in requests]
        done = speak(stage, batch)
        for request in requests:
            assert_equal(done[f"{request.request_id} {len(requests)}"], references[request.request_id])
    after = stage.execution_counters
    assert after["predictor_eager_calls"] == before["predictor_eager_calls"]
    assert after["predictor_graph_replays"] - before["predictor_graph_replays"] >= 3 * NUM_TOKENS


def test_a_stage_keeps_no_long_sound(stage, references, monkeypatch):
    """A request that is not streamed is sent in parts, too: here of two frames at most."""
    monkeypatch.setattr(stage_module, "_FRAMES_PER_WHOLE_PART", 2)
    spoken = speak(stage, [REQUESTS[2]])["long"]
    assert_equal(spoken, references["long"])
    samples = [len(part) for part in spoken[1]]
    assert len(samples) > 1 and set(samples[:-1]) == {2 * stage.model.samples_per_frame}


def test_rows_without_a_request_write_to_no_slot(stage, backend):
    model = stage.model
    states = [torch.randn(3, model.config.text_config.hidden_size) for _ in range(2)]
    noise = torch.randn(3, model.config.audio_config.hidden_size)
    caches = (model._acoustic, model._semantic)
    with torch.inference_mode():
        for slot in range(5):
            model.clear_slot(slot)
        model.speak([3, 0, 4], *states, noise)
    for cache in caches:
        written = [slot for slot in range(5) if any(end[slot].any() for end in cache._ends.values())]
        assert written == [0, 3, 4]


def test_a_branch_that_was_not_numbers_leaves_nothing_to_the_next_one(stage, backend):
    branches, width = stage.model.branches, stage.model.config.text_config.hidden_size
    rows = torch.randn(2, width, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        branches.clear(0)
        branches.clear(1)
        expected = branches.look_ahead([0, 1], rows)
        branches.clear(0)
        branches.look_ahead([0], torch.full((1, width), float("nan")))
        branches.keep([0])
        branches.clear(0)
        branches.clear(1)
        made = branches.look_ahead([1, 0], rows)
    torch.testing.assert_close(made, expected)
    for branch in (0, 1):
        branches.clear(branch)


def test_branches_need_no_more_than_their_memory(stage):
    """Two branches at most 256 long; room for 64 steps of both, and for a block of each that is not full."""
    model = stage.model
    branches = BranchCache(model.model, 2, 256, RowGraphs())
    branches.allocate(64, model.lm_head.weight)
    row = torch.randn(1, model.config.text_config.hidden_size)
    with torch.inference_mode():
        for _ in range(3 * 64):
            branches.look_ahead([0], row)
            branches.look_ahead([0], row)  # a row that is not kept takes no block of its own
            branches.keep([0])
        with pytest.raises(RuntimeError, match="have filled their 3 blocks of 64 steps: lower `max_num_seqs`"):
            branches.look_ahead([1], row)
        branches.clear(0)
        assert branches.look_ahead([1], row).isfinite().all()
