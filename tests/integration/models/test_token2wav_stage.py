"""token2wav's stage on vLLM: its keys, its batches, and requests that are cancelled."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.stage_specs import get_spec

from omni_cli.core.compat.libraries import prepare_libraries

prepare_libraries()

from omni_cli.backends.vllm.stage import ActiveRequest  # noqa: E402
from omni_cli.checkpoints.resolve import resolve_model  # noqa: E402
from omni_cli.config.schema import Execution  # noqa: E402
from omni_cli.core.errors import StageError  # noqa: E402
from omni_cli.engine.process.stage_process import load_stage  # noqa: E402
from omni_cli.models.qwen2_5_omni.settings import Token2WavConfig  # noqa: E402
from omni_cli.models.qwen2_5_omni.stages import TalkerStage  # noqa: E402
from omni_cli.models.qwen2_5_omni.token2wav.stage import (  # noqa: E402
    SpeechPriority,
    Token2WavStage,
    chunk_sizes,
    get_chunk_order,
)
from omni_cli.models.qwen_omni.media import ThinkerOutput  # noqa: E402
from omni_cli.requests.contents import SpeechOptions, StageIO  # noqa: E402
from omni_cli.requests.events import AudioChunk  # noqa: E402
from omni_cli.requests.outputs import GenerateRequest  # noqa: E402
from omni_cli.stage.messages import Progress, RequestDone  # noqa: E402
from omni_cli.stage.payloads import (  # noqa: E402
    DEFAULT_LIMITS,
    decode_additional_information,
    encode_additional_information,
)
from omni_cli.stage.protocol import StageSpec  # noqa: E402
from omni_cli.stage.request_payloads import ADDITIONAL_INFORMATION  # noqa: E402


def spec(execution: Execution = "eager", **keys) -> StageSpec:
    stage = Token2WavConfig.create(
        name="token2wav", backend="vllm", input="talker", num_inference_steps=4, execution=execution, **keys
    )
    return get_spec(stage, resolve_model("builtin:tiny-omni"))


def codes(request_id: str, num_codes: int, *, stream_audio: bool | None = None) -> GenerateRequest:
    stage_output = encode_additional_information({"codec_token_ids": list(range(num_codes))})
    return GenerateRequest(
        request_id, seed=3, stage=StageIO(input=stage_output), speech=SpeechOptions(stream_audio=stream_audio)
    )


def waveform(stage, emitted: list, request_id: str, num_codes: int) -> np.ndarray:
    stage.add(codes(request_id, num_codes))
    finish(stage, emitted)
    (done,) = waveforms(emitted, request_id).values()
    return done


def finish(stage, emitted: list) -> None:
    while stage.has_work():
        emitted += stage.step()


def waveforms(emitted: list, *request_ids: str) -> dict[str, np.ndarray]:
    """Return results by request id, in the order in which they finished."""
    done = [report for report in emitted if isinstance(report, RequestDone) and report.request_id in request_ids]
    assert len(done) == len(request_ids)
    return {report.request_id: report.audio.samples for report in done}


def test_without_a_voice_talker_and_token2wav_take_the_first_speaker_by_any_name(monkeypatch):
    own: Any = SimpleNamespace(
        speakers=["chelsie", "ethan"], payload_limits=DEFAULT_LIMITS, _codes=lambda _: [0], _setting=lambda *_: 4
    )
    _, params = Token2WavStage.render(own, ActiveRequest(GenerateRequest("0"), 0.0))
    information = decode_additional_information(params.extra_kwargs[ADDITIONAL_INFORMATION])
    assert information["speaker"] == ["chelsie"]

    given: dict[str, Any] = {}
    monkeypatch.setattr("omni_cli.models.qwen2_5_omni.stages.thinker_to_talker", lambda _, **keys: given.update(keys))
    output = ThinkerOutput([0], [0], torch.zeros(1, 1))
    own = SimpleNamespace(
        speakers={"chelsie": {"bos_token": 1}, "ethan": {"bos_token": 2}}, voices=("chelsie", "ethan"),
        config=SimpleNamespace(tts_codec_end_token_id=3, tts_codec_pad_token_id=4), _embed=None, _talker_prompt="",
        decode_input=lambda _: output.information(),
    )  # fmt: skip
    TalkerStage.begin(own, ActiveRequest(GenerateRequest("0"), 0.0))
    assert given["text_bos_token_id"] == 1


@pytest.mark.nightly
@pytest.mark.slow
def test_the_stage_compiles_while_it_loads_and_sounds_nearly_as_it_did():
    made = {}
    for execution in ("eager", "compile"):
        emitted: list = []
        stage = load_stage(spec(execution), emitted.append)
        assert stage.effective["execution"] == stage.settings["execution"] == execution
        stage.warm_up()
        loaded = stage.execution_counters
        made[execution] = waveform(stage, emitted, "0", 33)
        ran = {name: value - loaded[name] for name, value in stage.execution_counters.items()}
        if execution == "eager":
            assert ran["eager_calls"] == 12 and loaded["compiled_graphs"] == 0
        else:
            assert loaded["compiled_graphs"] >= 1 and loaded["compile_s"] > 0
            assert ran["compiled_graphs"] == ran["compile_s"] == ran["eager_calls"] == 0
        stage.close()
    assert made["eager"].std() > 0.01
    np.testing.assert_allclose(made["compile"], made["eager"], rtol=0, atol=1e-5)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has what the test says that it lacks")
def test_cudagraph_without_cuda_is_refused_before_the_engine_is_made():
    with pytest.raises(StageError, match="needs a CUDA device, and this machine has none") as caught:
        load_stage(spec("cudagraph"), lambda report: None)
    assert caught.value.hint == "--set token2wav.execution=eager"


@pytest.mark.slow
@pytest.mark.parametrize("streams", [False, True])
def test_an_aborted_request_leaves_between_steps_and_the_others_finish(streams):
    emitted: list = []
    stage = load_stage(spec("eager"), emitted.append)
    try:
        alone = waveform(stage, emitted, "alone", 33)
        emitted.clear()
        for request in (codes("first", 33), codes("gone", 120, stream_audio=streams), codes("third", 33)):
            stage.add(request)
        while not any(report.request_id == "gone" for report in emitted):
            emitted += stage.step()
        stage.abort("gone")
        finish(stage, emitted)
        made = waveforms(emitted, "first", "third")
        for samples in made.values():
            np.testing.assert_array_equal(samples, alone)
        # Of a stream the first sign is its first chunk.
        (sign,) = [report for report in emitted if report.request_id == "gone"]
        assert isinstance(sign, AudioChunk if streams else Progress)
        assert not stage.active and not stage._streams
        np.testing.assert_array_equal(waveform(stage, emitted, "gone again", 33), alone)
        assert len(stage._scheduler._times) == 1, "that of the latest request, until the next step"
    finally:
        stage.close()


@pytest.mark.slow
@pytest.mark.parametrize("batching", ["exact", "padded"])
def test_a_request_joins_between_the_steps_of_another(batching):
    emitted: list = []
    stage = load_stage(spec(max_num_seqs=4, batching=batching), emitted.append)
    try:
        alone = waveform(stage, emitted, "alone", 33)
        stage.add(codes("first", 33))
        emitted += stage.step()
        stage.add(codes("second", 33))
        finish(stage, emitted)
        for samples in waveforms(emitted, "first", "second").values():
            np.testing.assert_allclose(samples, alone, rtol=0, atol=0 if batching == "exact" else 1e-5)
    finally:
        stage.close()


@pytest.mark.slow
def test_a_waveform_is_sent_while_the_next_request_of_its_batch_still_runs():
    emitted: list = []
    stage = load_stage(spec(max_num_seqs=4), emitted.append)
    try:
        for name in ("first", "second"):
            stage.add(codes(name, 33))
        finish(stage, emitted)
    finally:
        stage.close()
    order = [(type(report), report.request_id) for report in emitted]
    assert order.index((RequestDone, "first")) < order.index((Progress, "second"))


@pytest.mark.slow
@pytest.mark.parametrize("num_threads", [2], indirect=True)
def test_padded_equals_exact_within_its_bound_and_both_report_their_batching(num_threads):
    lengths = {"a": 50, "b": 33, "c": 7}
    made = {}
    for batching in ("exact", "padded"):
        emitted: list = []
        stage = load_stage(spec(max_num_seqs=4, batching=batching), emitted.append)
        try:
            assert (stage.effective["batching"], stage.effective["precision"]) == (batching, "float32")
            for name, num_codes in lengths.items():
                stage.add(codes(name, num_codes))
            before = stage.execution_counters["eager_calls"]
            finish(stage, emitted)
            calls = stage.execution_counters["eager_calls"] - before
            # Twelve evaluations for each request alone, or for those on each thread.
            assert calls == 12 * (3 if batching == "exact" else num_threads)
            made[batching] = waveforms(emitted, *lengths)
            again = waveform(stage, emitted, "again", 33)
            if batching == "exact":
                np.testing.assert_array_equal(again, made["exact"]["b"])
        finally:
            stage.close()
    for name, exact in made["exact"].items():
        assert exact.std() > 0.01
        np.testing.assert_allclose(made["padded"][name], exact, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_padded_requests_that_are_cancelled_leave_the_batch():
    emitted: list = []
    stage = load_stage(spec(max_num_seqs=4, batching="padded"), emitted.append)
    try:
        for name, num_codes in (("first", 33), ("gone", 120), ("third", 33)):
            stage.add(codes(name, num_codes))
        while not any(report.request_id == "gone" for report in emitted):
            emitted += stage.step()
        stage.abort("gone")
        finish(stage, emitted)
        made = waveforms(emitted, "first", "third")
        assert [type(report) for report in emitted if report.request_id == "gone"] == [Progress]
        np.testing.assert_allclose(made["first"], made["third"], rtol=0, atol=1e-5)
        assert not stage.active
        # What chunks carry on ends with their stream, cancelled or not.
        for name in ("streamed", "left"):
            stage.add(codes(name, 120, stream_audio=True))
        while not any(report.request_id == "left" for report in emitted):
            emitted += stage.step()
        assert stage._scheduler._chunk_states.keys() >= {"left"}
        stage.abort("left")
        finish(stage, emitted)
        chunks = [each for each in emitted if isinstance(each, AudioChunk) and each.request_id == "streamed"]
        assert not stage.active and not stage._scheduler._chunk_states
        whole = waveform(stage, emitted, "whole", 120)
        streamed = np.concatenate([chunk.samples for chunk in chunks])
        np.testing.assert_allclose(streamed, whole, rtol=0, atol=1e-3)
        # A stream's first sound comes before whole requests that arrived earlier, and all of it is as without them.
        emitted.clear()
        for name in ("long", "longer"):
            stage.add(codes(name, 200))
        stage.step()
        stage.add(codes("streamed", 120, stream_audio=True))
        finish(stage, emitted)
        order = [report.request_id for report in emitted if isinstance(report, AudioChunk | RequestDone)]
        assert order.index("streamed") < min(order.index("long"), order.index("longer"))
        chunks = [each.samples for each in emitted if isinstance(each, AudioChunk)]
        np.testing.assert_allclose(np.concatenate(chunks), streamed, rtol=0, atol=1e-4)
    finally:
        stage.close()


@pytest.mark.slow
def test_bfloat16_is_used_by_every_layer_and_gives_a_finite_waveform():
    emitted: list = []
    stage = load_stage(spec(precision="bfloat16"), emitted.append)
    try:
        assert stage.effective["precision"] == stage.settings["precision"] == "bfloat16"
        assert np.isfinite(waveform(stage, emitted, "0", 33)).all()
    finally:
        stage.close()


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has what the test says that it lacks")
def test_tf32_without_cuda_is_refused():
    with pytest.raises(StageError, match="`precision: tf32` needs a CUDA device") as caught:
        load_stage(spec(precision="tf32"), lambda report: None)
    assert caught.value.hint == "--set token2wav.precision=float32"


@pytest.mark.parametrize(
    ("keys", "held_back"),
    [({}, 2), ({"batching": "padded"}, 2), ({"stream_context_codes": 0}, 0)],
)
def test_audio_is_held_back_where_the_next_chunk_can_make_it(keys, held_back):
    stage = Token2WavConfig.create(name="token2wav", backend="vllm", **keys)
    assert chunk_sizes(stage, codes_per_block=12).held_back == held_back


def test_chunks_whose_playback_would_stop_come_first_and_then_those_that_begin_a_stream():
    began, later = get_chunk_order(0, 7.0, None, now_s=10.0), get_chunk_order(4.0, 5.0, None, now_s=10.0)
    early, late = (get_chunk_order(start_s, 6.0, 9.0, now_s=10.0) for start_s in (1.2, 1.4))
    ahead = get_chunk_order(4.0, 6.0, 9.0, now_s=10.0)
    assert sorted([ahead, later, began, late, early]) == [early, late, began, later, ahead]
    priorities = [priority.name for priority, _ in (early, began, ahead)]
    assert priorities == ["URGENT", "FIRST", "LATER"]
    assert began < (SpeechPriority.WHOLE, 0.0) < ahead
