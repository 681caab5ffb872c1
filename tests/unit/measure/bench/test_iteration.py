"""Metrics by the field's definitions, from traces with known times."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import numpy as np
import pytest

from omni_cli.measure.bench.iteration import Finished, Iteration, get_accounted, get_metrics, get_work
from omni_cli.requests.outputs import AudioOutput, ImageOutput, RequestResult, StageTrace


def ar(name: str, times: list[float], num_input: int = 5) -> StageTrace:
    return StageTrace(
        name, "ar", times[-1], ttft_s=times[0], num_input_tokens=num_input, num_output_tokens=len(times),
        output_token_ids=tuple(range(len(times))), token_times_s=tuple(times),
    )  # fmt: skip


def vocoder(latency_s: float = 0.5) -> StageTrace:
    return StageTrace(
        "token2wav", "diffusion", latency_s, num_inference_steps=10, denoise_step_s=(0.05,) * 9, vocoder_s=0.05
    )


def request(*traces: StageTrace, seconds: float, outputs: tuple = (), ttfp_s: float | None = None) -> Finished:
    return Finished(
        RequestResult("0", outputs, traces, audio_arrivals=() if ttfp_s is None else ((ttfp_s, 1),)), seconds
    )


def test_a_single_ar_stage() -> None:
    times = [0.2, 0.3, 0.4, 0.6]
    iteration = Iteration(0.61, (request(ar("thinker", times), seconds=0.61),), (("thinker", "ar"),))
    metrics = get_metrics(iteration)
    assert metrics == {
        "ttft_s": 0.2,
        "tpot_s": pytest.approx(0.4 / 3),
        "itl_s": pytest.approx(0.1),
        "output_tokens_per_second": pytest.approx(4 / 0.61),
    }
    assert get_work(iteration) == {"requests": 1, "input_tokens": 5, "output_tokens": 4}


def test_a_high_percentile_only_where_there_are_enough_gaps() -> None:
    few = Iteration(1, (request(ar("t", [0.1 * i for i in range(1, 45)]), seconds=5),), (("t", "ar"),))
    many = Iteration(1, (request(ar("t", [0.1 * i for i in range(1, 46)]), seconds=5),), (("t", "ar"),))
    assert "itl_p90_s" not in get_metrics(few)
    assert get_metrics(many)["itl_p90_s"] == pytest.approx(0.1)


def test_the_parts_of_a_talkers_steps() -> None:
    talker = replace(ar("talker", [0.1, 0.2, 0.3]), code_predictor_s=(0.03, 0.01, 0.02), backbone_s=(0.09, 0.04, 0.05))
    metrics = get_metrics(Iteration(0.4, (request(talker, seconds=0.4),), (("talker", "ar"),)))
    assert (metrics["code_predictor_s"], metrics["backbone_s"]) == (0.02, 0.05)


def test_one_token_has_no_time_per_further_token() -> None:
    metrics = get_metrics(Iteration(0.2, (request(ar("t", [0.2]), seconds=0.2),), (("t", "ar"),)))
    assert "tpot_s" not in metrics and "itl_s" not in metrics and metrics["ttft_s"] == 0.2


def test_a_chain_names_its_stages() -> None:
    audio = AudioOutput(np.zeros(24_000 // 2, np.float32), 24_000)
    stages = (("thinker", "ar"), ("talker", "ar"), ("token2wav", "diffusion"))
    traces = (ar("thinker", [0.1, 0.2]), ar("talker", [0.05, 0.3]), vocoder())
    iteration = Iteration(1.0, (request(*traces, seconds=1.0, outputs=(audio,)),), stages)
    metrics = get_metrics(iteration)
    assert metrics["ttft_s"] == 0.1 and metrics["talker.ttft_s"] == 0.05
    assert metrics["talker.latency_s"] == 0.3 and metrics["token2wav.latency_s"] == 0.5
    assert metrics["denoise_step_s"] == 0.05 and metrics["vocoder_s"] == 0.05
    assert metrics["rtf"] == 2.0
    assert "output_tokens_per_second" not in metrics, "these would be tokens of text over the time of speech"
    assert get_work(iteration) == {
        "requests": 1, "input_tokens": 5, "output_tokens": 4, "denoise_steps": 10, "audio_s": 0.5,
    }  # fmt: skip


def test_a_talker_with_a_code_predictor_and_a_codec() -> None:
    audio = AudioOutput(np.zeros(24_000, np.float32), 24_000)
    talker = dataclasses.replace(ar("talker", [0.05, 0.3, 0.5]), code_predictor_s=(0.01, 0.03, 0.02))
    codec = StageTrace("code2wav", "diffusion", 0.2, num_input_tokens=3, vocoder_s=0.15)
    stages = (("thinker", "ar"), ("talker", "ar"), ("code2wav", "diffusion"))
    traces = (ar("thinker", [0.1, 0.2]), talker, codec)
    iteration = Iteration(1.0, (request(*traces, seconds=1.0, outputs=(audio,)),), stages)
    metrics = get_metrics(iteration)
    assert metrics["talker.code_predictor_s"] == 0.02 and metrics["vocoder_s"] == 0.15
    assert "denoise_step_s" not in metrics
    assert get_work(iteration) == {"requests": 1, "input_tokens": 5, "output_tokens": 5, "audio_s": 1}


def test_images() -> None:
    image = ImageOutput(np.zeros((4, 6, 3), np.uint8))
    trace = StageTrace(
        "image", "diffusion", 0.4, num_inference_steps=2, text_encode_s=0.1, denoise_step_s=(0.1, 0.1), vae_decode_s=0.1
    )
    requests = tuple(request(trace, seconds=0.5, outputs=(image,)) for _ in range(2))
    iteration = Iteration(0.5, requests, (("image", "diffusion"),))
    metrics = get_metrics(iteration)
    assert metrics["images_per_second"] == 4.0
    assert (metrics["text_encode_s"], metrics["vae_decode_s"]) == (0.1, 0.1)
    assert get_work(iteration)["pixels"] == 48 and get_work(iteration)["denoise_steps"] == 4


def test_shares_of_a_request_that_is_alone() -> None:
    traces = (ar("thinker", [0.1, 0.2]), vocoder())
    stages = (("thinker", "ar"), ("token2wav", "diffusion"))
    alone = get_accounted(Iteration(0.7, (request(*traces, seconds=0.7),), stages))
    assert alone == {"stages": pytest.approx(1.0), "tokens": 1.0, "steps": pytest.approx(1.0)}
    together = get_accounted(Iteration(0.7, (request(*traces, seconds=0.7),) * 2, stages))
    assert set(together) == {"tokens"}, "several wait for one another in between"
    streamed = (traces[0], dataclasses.replace(traces[1], num_chunks=3))
    overlapping = get_accounted(Iteration(0.6, (request(*streamed, seconds=0.6),), stages))
    assert set(overlapping) == {"tokens"}, "stages that run side by side take more than the request does"
    # The second begins 0.1 s before the first ends, which only one that starts early may do.
    second = dataclasses.replace(traces[1], began_s=0.1)
    early = (traces[0], dataclasses.replace(second, effective={"early_start": True}))
    assert get_accounted(Iteration(0.6, (request(*early, seconds=0.6),), stages))["stages"] == pytest.approx(1.0)
    assert get_accounted(Iteration(0.7, (request(*early, seconds=0.7),), stages))["stages"] < 0.9
    assert get_accounted(Iteration(0.6, (request(traces[0], second, seconds=0.6),), stages))["stages"] > 1.1


@pytest.mark.parametrize(("latency_s", "share"), [(0.5, 1.0), (0.504, 1.0), (0.496, 1.0), (1.005, 0.5), (0.255, 1.94)])
def test_five_milliseconds_of_a_stage_are_accounted_for(latency_s: float, share: float) -> None:
    """However long the other stages take."""
    traces = (ar("thinker", [9.0]), vocoder(latency_s))
    alone = Iteration(9.0, (request(*traces, seconds=9.0),), (("thinker", "ar"), ("token2wav", "diffusion")))
    assert get_accounted(alone)["steps"] == pytest.approx(share, rel=0.01)


def test_the_first_audio_of_each_request_counts() -> None:
    audio = AudioOutput(np.zeros(24_000, np.float32), 24_000)
    requests = tuple(request(vocoder(), seconds=2.0, outputs=(audio,), ttfp_s=ttfp_s) for ttfp_s in (0.2, 0.9, 0.3))
    metrics = get_metrics(Iteration(2.0, requests, (("token2wav", "diffusion"),)))
    assert metrics["ttfp_s"] == 0.3 and metrics["rtf"] == pytest.approx(2 / 3)


def test_streamed_audio_has_a_listener() -> None:
    """Half a second at 0.5 s, the rest a second later; of requests with and without a stall the mean is reported."""
    audio = AudioOutput(np.full(24_000, 0.5, np.float32), 24_000)
    results = [
        RequestResult("0", (audio,), (vocoder(),), audio_arrivals=arrivals)
        for arrivals in (((0.5, 12_000), (1.5, 24_000)), ((0.5, 24_000),))
    ]
    requests = tuple(Finished(result, 2.0) for result in results)
    metrics = get_metrics(Iteration(2.0, requests, (("token2wav", "diffusion"),)))
    assert {name: metrics[name] for name in ("ttfp_s", "heard_s", "stutter_s", "underruns", "longest_gap_s")} == {
        "ttfp_s": 0.5, "heard_s": 0.5, "stutter_s": 0.25, "underruns": 0.5, "longest_gap_s": 1.0,
    }  # fmt: skip
