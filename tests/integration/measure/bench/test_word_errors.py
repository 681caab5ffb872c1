"""Words of answers, heard by a real Whisper: two servers of speech, one of which drops words."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest
from aiohttp import web
from support.omni_process import run_omni

from omni_cli.measure.bench.quality import start_word_judge
from omni_cli.records.record import load_record
from omni_cli.requests.encoding import encode_wav
from omni_cli.requests.media.audio import SPEECH_TEXTS, read_speech

pytestmark = pytest.mark.slow


def test_words_are_compared_after_whispers_normalisation() -> None:
    with start_word_judge("") as judge:
        assert judge is not None
        said = [
            ("Twenty-five apples aren't $3.", "25 apples are not three dollars"),
            ("a cat", "cat"),
            ("a cat", "cat"),
        ]
        found = judge.judge(said)
    words = [(item["words"], item["wer"], item["deletions"]) for item in found]
    assert words == [(5, 0, 0), (2, 0.5, 0.5), (2, 0.5, 0.5)]
    assert len(judge.known) == 2, "equal answers are looked at once"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_stops_the_command_lets_its_last_answers_be_judged(number: signal.Signals) -> None:
    """Ctrl-C in a terminal and `timeout` send their signal to all of the command's processes."""
    others = multiprocessing.active_children()
    with start_word_judge("") as judge:
        assert judge is not None
        (process,) = (child for child in multiprocessing.active_children() if child not in others)
        os.kill(process.pid or 0, number)
        assert judge.judge([("a cat", "cat")])[0]["wer"] == 0.5
    assert not process.is_alive()


def test_the_process_ends_with_a_command_that_is_killed() -> None:
    code = (
        "import multiprocessing, os, signal\n"
        "from omni_cli.measure.bench.quality import start_word_judge\n"
        "if __name__ == '__main__':\n"
        "    with start_word_judge(''):\n"
        "        print(*[child.pid for child in multiprocessing.active_children()], flush=True)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    printed = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False).stdout
    psutil.wait_procs([psutil.Process(pid) for pid in map(int, printed.split()) if psutil.pid_exists(pid)], timeout=20)
    assert printed and not any(psutil.pid_exists(pid) for pid in map(int, printed.split()))


@contextmanager
def serve(sounds: dict[str, bytes]) -> Iterator[str]:
    """Serve these WAV files by their texts; yields the address."""
    loop, addresses, begun = asyncio.new_event_loop(), list[str](), threading.Event()

    async def speak(request: web.Request) -> web.StreamResponse:
        return web.Response(body=sounds[(await request.json())["input"]], content_type="audio/wav")

    async def models(_request: web.Request) -> web.StreamResponse:
        return web.json_response({"object": "list", "data": [{"id": "speaker", "object": "model"}]})

    async def start() -> web.AppRunner:
        app = web.Application()
        app.add_routes([web.get("/v1/models", models), web.post("/v1/audio/speech", speak)])
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        addresses.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        begun.set()
        return runner

    def work() -> None:
        runner = loop.run_until_complete(start())
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    yield addresses[0]
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


@pytest.mark.nightly  # a download of 68 MiB
def test_a_server_that_drops_words_is_fast_and_wrong(whisper_tiny: Path, tmp_path: Path) -> None:
    """Of the package's sentences one server says all, the other one the first half of the samples."""
    spoken = dict(zip(SPEECH_TEXTS, read_speech(), strict=True))
    whole = {text: encode_wav(samples, rate) for text, (samples, rate) in spoken.items()}
    halves = {text: encode_wav(samples[: len(samples) // 2], rate) for text, (samples, rate) in spoken.items()}
    requests, record = tmp_path / "requests.jsonl", tmp_path / "record.json"
    requests.write_text("\n".join(json.dumps({"prompt": text}) for text in SPEECH_TEXTS))
    with serve(whole) as a, serve(halves) as b:
        ended = run_omni(
            tmp_path, "loadtest", a, b, "--endpoint", "speech", "--requests", str(requests), "--num-requests", "2",
            "--num-iters", "2", "--num-iters-warmup", "1", "--extra-body", '{"response_format": "wav"}',
            "--slo", "e2e:60s", "--slo", "wer:15%", "--quality", f"wer={whisper_tiny}", "--output-json", str(record),
        )  # fmt: skip
    assert ended.code in (0, 3), ended.err
    found = load_record(record)
    honest, other = (variant.samples[0] for variant in found.variants)
    assert honest.metrics["slo_attainment"] == 1 and honest.metrics["wer"] <= 1 / 14, "it hears `time` for `nine`"
    assert other.metrics["slo_attainment"] == 0
    assert 0.3 <= other.metrics["deletions"] <= other.metrics["wer"] <= 0.8
    assert other.requests["words"] == (6, 8) and honest.work["words"] == 14
    assert found.workload["recogniser"] == "whisper-tiny.en" and found.workload["slo"] == {"e2e": 60.0, "wer": 0.15}
    (wer,) = (item for item in found.comparisons if item.metric == "wer")
    assert wer.b_median == pytest.approx(other.metrics["wer"]) and (wer.ratio or 0) > 3
    assert "left out" in ended.out and np.isfinite(wer.ratio or np.nan)
