"""`omni loadtest` against the real server: chats, speech, images, both kinds of load, overload, and its end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.omni_process import Ended, OmniProcess, run_omni
from support.omni_server import KEY, OmniServer
from support.rapl import Package

from omni_cli.records.record import Record, Sample, load_record

pytestmark = pytest.mark.slow


@pytest.fixture
def bench(tmp_path: Path) -> Any:
    """`bench(url, ..., words)` -> the ended command; its record is at `tmp_path / "r.json"`."""

    def call(*arguments: str) -> Ended:
        folder = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        ended = run_omni(folder, "loadtest", "--output-json", str(tmp_path / "r.json"), *arguments)
        ended.check_clean()
        if "images" not in arguments:  # a worker decodes each image that a server returns
            assert not ended.started_others, "the command measures by itself"
        return ended

    return call


def record_of(tmp_path: Path) -> Record:
    return load_record(tmp_path / "r.json")


def samples_of(tmp_path: Path) -> tuple[Sample, ...]:
    (variant,) = record_of(tmp_path).variants
    return variant.samples


ITERATIONS = ("--num-iters", "2", "--num-iters-warmup", "1")
FEW = (*ITERATIONS, "--num-requests", "4")


def test_chats_in_a_closed_loop(omni: OmniServer, bench: Any, tmp_path: Path) -> None:
    before = omni.metric("omni_generation_tokens_total", stage="thinker")
    slos = ("--slo", "ttft:60s", "--slo", "e2e:120s")
    ended = bench(omni.url, "--concurrency", "2", "--output-len", "12", "--json", *FEW, *slos)
    assert ended.code == 0, ended.err
    (variant,) = ended.document["variants"]
    # Warm-up and two windows of four requests, with exactly as many tokens as asked for; and those of clients that go
    # on before, between and after, of which the last ones are cut off.
    extra = variant["effective"]["server"]["observed"]["extra_requests"]
    tokens = omni.metric("omni_generation_tokens_total", stage="thinker") - before
    assert 3 * 4 * 12 <= tokens <= (3 * 4 + extra + 2) * 12 and extra >= 2
    assert variant["settings"] == {"url": omni.url, "model": "tiny-omni"}
    assert variant["effective"]["server"]["owned_by"] == "omni-cli"
    for sample in variant["samples"]:
        metrics, work = sample["metrics"], sample["work"]
        assert {"ttft_s", "tpot_s", "itl_s", "requests_per_second", "output_tokens_per_second"} <= set(metrics)
        assert work["requests"] == 4 and work["output_tokens"] == 48 and work["input_tokens"] > 4 * 32
        assert metrics["slo_attainment"] == 1
        assert metrics["goodput_per_second"] == metrics["requests_per_second"]
        assert 0 < metrics["ttft_s"] < sample["e2e_s"]
        # The first token and the others add up to the whole, except for the end of the stream.
        assert metrics["ttft_s"] + 11 * metrics["tpot_s"] == pytest.approx(sample["e2e_s"], rel=0.5)


def test_an_impossible_limit_is_never_met(omni: OmniServer, bench: Any, tmp_path: Path) -> None:
    ended = bench(omni.url, "--output-len", "4", *FEW, "--slo", "ttft:1ms")
    assert ended.code == 0, ended.err
    for sample in samples_of(tmp_path):
        assert sample.metrics["slo_attainment"] == sample.metrics["goodput_per_second"] == 0


def test_chats_in_an_open_loop(omni: OmniServer, bench: Any, tmp_path: Path) -> None:
    ended = bench(omni.url, "--request-rate", "8", "--output-len", "4", *ITERATIONS, "--num-requests", "8")
    assert ended.code == 0, ended.err
    for sample in samples_of(tmp_path):
        starts = sample.requests["start_s"]
        assert len(starts) == 8 == len(sample.requests["lag_s"]) and 0 < starts[0] < starts[-1] < 1.01
    first, second = samples_of(tmp_path)
    assert first.requests["start_s"] != second.requests["start_s"]


def test_spoken_chats(omni: OmniServer, bench: Any, tmp_path: Path) -> None:
    limits = ("--slo", "ttfp:120s", "--slo", "rtf:1000")
    ended = bench(omni.url, "--modalities", "text,audio", "--output-len", "8", *FEW, *limits)
    assert ended.code == 0 and "sample rate" not in ended.err, ended.err
    for sample in samples_of(tmp_path):
        # The talker stops at its 40 tokens of 20 ms, which count as output tokens, too.
        assert 0 < sample.work["audio_s"] <= 4 * 0.8 + 0.001
        assert sample.work["output_tokens"] == pytest.approx(4 * 8 + 50 * sample.work["audio_s"])
        assert sample.metrics["ttft_s"] < sample.metrics["ttfp_s"] <= sample.e2e_s
        assert sample.metrics["slo_attainment"] == 1
        for e2e_s, audio_s, rtf in zip(*(sample.requests[name] for name in ("e2e_s", "audio_s", "rtf")), strict=True):
            assert rtf == pytest.approx(e2e_s / audio_s, rel=1e-4)


def test_speech_that_is_cut_is_counted(omni: OmniServer, bench: Any, tmp_path: Path) -> None:
    # With this seed; with random weights some speech is silent, which is an error.
    body = '{"max_audio_tokens": 20}'
    ended = bench(omni.url, "--endpoint", "speech", "--input-len", "12", "--seed", "2", "--extra-body", body, *FEW)
    assert ended.code == 0, ended.err
    assert "8 requests, none failed, 8 cut, " in ended.out and "sample rate" not in ended.err
    for sample in samples_of(tmp_path):
        assert sample.requests["is_cut"] == (1, 1, 1, 1)
        assert sample.work["audio_s"] > 0 and 0 < sample.metrics["ttfp_s"] <= sample.e2e_s
        assert sample.metrics["heard_s"] >= sample.metrics["ttfp_s"] and sample.metrics["stutter_s"] >= 0
        assert {"ttft_s", "tpot_s"}.isdisjoint(sample.metrics)


def test_images(image_server: OmniServer, bench: Any, tmp_path: Path) -> None:
    body = '{"size": "64x32", "num_inference_steps": 2}'
    ended = bench(image_server.url, "--endpoint", "images", "--extra-body", body, *FEW)
    assert ended.code == 0, ended.err
    for sample in samples_of(tmp_path):
        assert sample.work == {"requests": 4, "pixels": 4 * 64 * 32}
        assert sample.metrics["images_per_second"] == pytest.approx(sample.metrics["requests_per_second"])


def test_transcriptions(whisper_server: OmniServer, bench: Any, tmp_path: Path) -> None:
    ended = bench(whisper_server.url, "--endpoint", "transcriptions", "--concurrency", "2", *FEW)
    assert ended.code == 0, ended.err
    assert ", speech in, " in ended.out
    for sample in samples_of(tmp_path):
        assert sample.work["audio_s"] == pytest.approx(2 * 3.973, abs=0.01), "each of the two sentences twice"
        assert sample.metrics["rtf"] > 0
    refused = bench(whisper_server.url, "--endpoint", "transcriptions", "--input-len", "9")
    refused.check_error(2, "`--input-len` has no effect with `--endpoint transcriptions`")


def test_an_endpoint_that_it_lacks(omni: OmniServer, bench: Any) -> None:
    ended = bench(omni.url, "--endpoint", "images", *FEW)
    ended.check_error(6, "answered none of 4 requests", "HTTP 404 unsupported_endpoint", "makes text and audio")


def test_the_same_server_twice(omni: OmniServer, bench: Any, tmp_path: Path) -> None:
    few = ("--num-iters", "4", "--num-iters-warmup", "1", "--num-requests", "4", "--output-len", "8")
    ended = bench(omni.url, f"{omni.url}/v1/", *few)
    assert ended.code == 3, ended.err
    record = record_of(tmp_path)
    address = omni.url.removeprefix("http://")
    assert [variant.name for variant in record.variants] == [address, f"{address} (2)"]
    comparison = next(entry for entry in record.comparisons if entry.metric == "e2e_s")
    # Temperature 0 and a seed give the same words. The bounds on times allow for a busy machine.
    assert comparison.outputs.identical is True and comparison.interleaved
    assert 0.2 < comparison.ratio < 5
    assert record.environment["conditions"]["interleaving"] == "iterations"


def test_more_clients_wait_longer(omni: OmniServer, bench: Any, tmp_path: Path) -> None:
    few = ("--num-iters", "2", "--num-iters-warmup", "1", "--output-len", "8", "--num-requests", "16")
    ended = bench(omni.url, "--vary", "concurrency=1,16", *few)
    assert ended.code == 3, ended.err
    one, many = record_of(tmp_path).variants
    assert (one.settings["concurrency"], many.settings["concurrency"]) == (1, 16)
    rates = [variant.summary["requests_per_second"].median for variant in (one, many)]
    assert rates[1] > rates[0], "it batches"


def test_overload_is_counted_and_no_success(limited: OmniServer, bench: Any, tmp_path: Path) -> None:
    words = (limited.url, "--api-key", KEY, "--endpoint", "images", *ITERATIONS)
    ended = bench(*words, "--request-rate", "inf", "--num-requests", "12")
    assert ended.code == 6
    assert "x HTTP 429 queue_full" in ended.err and "hint: send fewer requests at once" in ended.err
    for sample in samples_of(tmp_path):
        (failed,) = sample.failures.values()
        assert sample.work["requests"] + failed.count == 12 and failed.count > 0


def test_a_key(limited: OmniServer, bench: Any, tmp_path: Path) -> None:
    images = (limited.url, "--endpoint", "images", *FEW)
    bench(*images).check_error(6, "HTTP 401", "OPENAI_API_KEY")
    ended = bench(*images, "--api-key", KEY)
    assert ended.code == 0, ended.err
    assert KEY not in ended.out + ended.err + (tmp_path / "r.json").read_text() + limited.raw_log
    assert "***" in record_of(tmp_path).command


def start_long(server: OmniServer, folder: Path) -> OmniProcess:
    """Started with a long time budget, and with its first window recorded."""
    path = folder / "r.json"
    body = '{"num_inference_steps": 2}'
    words = (server.url, "--endpoint", "images", "--extra-body", body, "--num-iters", "100000")
    process = OmniProcess(folder, "loadtest", *words, "--num-requests", "4", "--output-json", str(path))
    process.wait_for(path.exists)
    return process


@pytest.mark.nightly
def test_a_server_that_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    folder.mkdir()
    # A separate server, because a killed one leaves its temporary files behind.
    server = OmniServer(folder, "--profile", "tiny-image")
    try:
        process = start_long(server, tmp_path)
        server.process.popen.kill()
        ended = process.end()
    finally:
        server.stop()
    ended.check_clean()
    assert ended.code == 6 and ended.err.count("error: ") == 1
    assert "answered none of 4 requests (block" in ended.err
    (variant,) = record_of(tmp_path).variants
    assert variant.samples and "answered none" in variant.error


def test_an_interrupt_keeps_finished_windows(image_server: OmniServer, tmp_path: Path) -> None:
    process = start_long(image_server, tmp_path)
    process.interrupt()
    ended = process.end()
    ended.check_clean()
    assert ended.code == 130 and "error: interrupted" in ended.err
    assert "Benchmark 1" in ended.out and samples_of(tmp_path)
    image_server.wait_until(lambda: image_server.metric("omni_requests_in_flight") == 0, timeout_s=10)


def test_requests_of_a_file_as_a_trace(omni: OmniServer, bench: Any, tmp_path: Path) -> None:
    """Each with its own length and time; the server counts the tokens."""
    before = omni.metric("omni_generation_tokens_total", stage="thinker")
    lines = [{"prompt": "hello", "sampling": {"max_tokens": n + 2}, "arrival_s": n / 10} for n in range(4)]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    once = ("--num-iters", "1", "--num-iters-warmup", "1", "--slo", "e2e:120s")
    ended = bench(omni.url, "--requests", str(path), *once)
    assert ended.code == 0, ended.err
    assert omni.metric("omni_generation_tokens_total", stage="thinker") - before == 2 * (2 + 3 + 4 + 5)
    (sample,) = samples_of(tmp_path)
    assert sample.work["output_tokens"] == 14 and sample.metrics["goodput_per_second"] > 0
    assert record_of(tmp_path).workload["load"]["arrivals"] == "trace"


def test_a_server_counts_the_energy_of_its_windows(start_server: Any, bench: Any, tmp_path: Path) -> None:
    """Of a processor of 50 W."""
    with Package(tmp_path, 50.0):
        environment = {"PLANTED_RAPL": str(tmp_path)}
        server = start_server("--profile", "tiny-omni", planted="planted_rapl", environment=environment)
        before = server.metric("omni_energy_joules_total", device="cpu0", source="RAPL")
        ended = bench(server.url, "--concurrency", "2", "--output-len", "64", "--num-requests", "24", *ITERATIONS)
        assert server.metric("omni_energy_joules_total", device="cpu0") > before
    assert ended.code == 0 and "cpu0 by RAPL, idle " in ended.out, ended.err
    (variant,) = record_of(tmp_path).variants
    assert variant.energy is not None and variant.energy.absent is None
    assert variant.energy.idle_power_w["cpu0"] == pytest.approx(50, rel=0.2)
    joules, span_s, windows = 0.0, 0.0, 0
    figures = [sample.block for sample in variant.samples if "energy_j" in sample.metrics]
    for sample in variant.samples[: figures[-1] + 1]:
        windows += 1
        span_s += sample.work["requests"] / sample.metrics["requests_per_second"]
        if sample.block in figures:
            metrics, tokens = sample.metrics, sample.work["output_tokens"]
            assert metrics["energy_per_request_j"] * 24 == pytest.approx(metrics["energy_j"])
            assert metrics["energy_per_output_token_j"] * tokens == pytest.approx(metrics["energy_j"])
            joules, windows = joules + windows * metrics["energy_j"], 0
    # The seconds that the rates are of.
    assert joules == pytest.approx(50 * span_s, rel=0.2)


def test_a_server_without_a_counter_has_no_energy(omni: OmniServer, bench: Any, tmp_path: Path) -> None:
    ended = bench(omni.url, "--concurrency", "1", "--output-len", "4", *FEW)
    assert ended.code == 0 and "energy" not in ended.out.lower()
    (variant,) = record_of(tmp_path).variants
    assert variant.energy is not None
    if not variant.energy.sources:  # this machine may have one
        assert variant.energy.absent == "the server's /metrics has no omni_energy_joules_total"
