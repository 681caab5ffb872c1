"""Answers that are in time and say their text: `omni loadtest A B --slo wer:10%` on servers that speak, with espeak-ng.

python benchmarks/right_and_fast.py FOLDER [RUNS] [STATE]

FOLDER is a Whisper, such as that of scripts/whisper_tiny.py. Per pair of servers RUNS tests are made, 20 by default: of
two equal ones, and of one that speaks every text against one that drops 1 of 20 words. An answer is one of six takes
of its sentence, which differ in rate, pitch and the words that they drop, so that the recogniser errs differently on
both sides. STATE keeps what was heard and the verdicts: equal sounds are heard once, and a stopped run goes on.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ.setdefault("OMP_NUM_THREADS", "1")

from aiohttp import web

from omni_cli.cli.app import run as run_omni
from omni_cli.measure.bench import word_errors
from omni_cli.records.record import load_record

SUBJECTS = ["the doctor", "my brother", "the old teacher", "a young farmer", "our neighbour", "the captain"]
VERBS = ["bought", "carried", "painted", "forgot", "sold", "found"]
OBJECTS = ["seven apples", "a wooden chair", "the green window", "twenty letters", "two heavy boxes", "a loaf of bread"]
PLACES = ["on the way to the station", "before the long winter", "in the middle of the night", "near the quiet river"]
NUM_SENTENCES, NUM_TAKES, NUM_VOICES, DROPPED = 60, 6, 3, 0.05
ANSWER_S = 0.05


def make_sentences() -> list[str]:
    """Return sentences of ten to fourteen words."""
    source = random.Random(0)
    parts = (SUBJECTS, VERBS, OBJECTS, PLACES)
    every = {" ".join(source.choice(part) for part in parts).capitalize() + "." for _ in range(10 * NUM_SENTENCES)}
    return sorted(every)[:: len(every) // NUM_SENTENCES][:NUM_SENTENCES]


class Speaker:
    """A server of speech that answers after `ANSWER_S`, and leaves out each word with the probability `dropped`."""

    def __init__(self, dropped: float, seed: int, spoken: dict[tuple[str, int], bytes]) -> None:
        self._dropped = dropped
        self._source = random.Random(seed)
        self._spoken = spoken

    async def speak(self, request: web.Request) -> web.StreamResponse:
        text, take = str((await request.json())["input"]), self._source.randrange(NUM_TAKES)
        drops = random.Random(f"{text}/{take}")
        kept = [word for word in text.split() if drops.random() >= self._dropped] or [text]
        key = " ".join(kept), take % NUM_VOICES
        if key not in self._spoken:
            self._spoken[key] = await asyncio.to_thread(espeak, *key)
        await asyncio.sleep(ANSWER_S)
        return web.Response(body=self._spoken[key], content_type="audio/wav")

    async def models(self, _request: web.Request) -> web.StreamResponse:
        return web.json_response({"object": "list", "data": [{"id": "speaker", "object": "model"}]})


def espeak(text: str, voice: int) -> bytes:
    """Return a WAV file."""
    rate, pitch = str(150 + 12 * voice), str(45 + 5 * voice)
    command = ["espeak-ng", "--stdout", "-s", rate, "-p", pitch, text]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout


@contextmanager
def serve(speaker: Speaker) -> Iterator[str]:
    """Serve in a thread; yields the address."""
    loop, address = asyncio.new_event_loop(), list[str]()
    begun = threading.Event()

    async def start() -> None:
        app = web.Application()
        app.router.add_get("/v1/models", speaker.models)
        app.router.add_post("/v1/audio/speech", speaker.speak)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        address.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        begun.set()

    def work() -> None:
        loop.run_until_complete(start())
        loop.run_forever()

    threading.Thread(target=work, daemon=True).start()
    begun.wait()
    yield address[0]
    loop.call_soon_threadsafe(loop.stop)


def test(
    judge: word_errors.WordJudge, folder: Path, dropped: float, number: int, spoken: dict[tuple[str, int], bytes]
) -> dict[str, Any]:
    """Return what `omni loadtest` says of an honest server and one that drops words; `judge` is loaded once."""
    with (
        tempfile.TemporaryDirectory() as temporary,
        serve(Speaker(0.0, 2 * number, spoken)) as a,
        serve(Speaker(dropped, 2 * number + 1, spoken)) as b,
    ):
        requests, record = Path(temporary, "requests.jsonl"), Path(temporary, "record.json")
        sentences = make_sentences()
        random.Random(number).shuffle(sentences)
        requests.write_text("\n".join(json.dumps({"prompt": text}) for text in sentences))
        known, began_s = len(judge.known), time.monotonic()
        arguments = ["loadtest", a, b, "--endpoint", "speech", "--requests", str(requests), "-q", "--seed", str(number)]
        arguments += ["--slo", "wer:10%", "--slo", "e2e:5s", "--quality", f"wer={folder}", "--output-json", str(record)]
        arguments += ["--num-requests", "10", "--num-iters-warmup", "1", "--time-budget", "600"]
        arguments += ["--extra-body", '{"response_format": "wav"}', "--num-iters", str(NUM_SENTENCES * 2 // 10)]
        loaded = patch.object(word_errors, "start_word_judge", lambda _folder: nullcontext(judge))
        with loaded, patch.object(sys, "argv", ["omni", *arguments]):
            code = run_omni(arguments)
        if code not in (0, 3):
            raise SystemExit(f"omni loadtest ended with {code}")
        found = load_record(record)
    compared = {item.metric: item for item in found.comparisons}
    names = ("wer", "deletions", "slo_attainment")
    return {
        "took_s": time.monotonic() - began_s,
        "heard": len(judge.known) - known,
        **{name: (compared[name].a_median, compared[name].b_median, compared[name].verdict) for name in names},
    }


def row(name: str, tests: list[dict[str, Any]]) -> str:
    """Format a row of the table: how often each metric was called worse, or better, and the medians."""
    cells = [name, str(len(tests))]
    for metric in ("wer", "deletions", "slo_attainment"):
        verdicts = [item[metric][2] for item in tests]
        a, b = (statistics.median(item[metric][side] for item in tests) for side in (0, 1))
        cells.append(f"{a:.1%} / {b:.1%}: {verdicts.count('slower')} worse, {verdicts.count('faster')} better")
    return f"| {' | '.join(cells)} |\n"


def run(judge: word_errors.WordJudge, folder: Path, count: int, state: dict[str, Any], state_file: Path) -> None:
    """Make the tests that the state lacks; what was heard stays if one is stopped."""
    spoken: dict[tuple[str, int], bytes] = {}
    for name, dropped in (("equal", 0.0), ("drops", DROPPED)):
        for number in range(len(state[name]), count):
            try:
                state[name].append(test(judge, folder, dropped, 2 * number + (dropped > 0), spoken))
            finally:
                state_file.write_text(json.dumps(state))
            sys.stderr.write(f"{number} {name}: {state[name][-1]}\n")


def main() -> None:
    folder, count = Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 20
    state_file = Path(sys.argv[3] if len(sys.argv) > 3 else "right_and_fast.json")
    state = json.loads(state_file.read_text()) if state_file.exists() else {"heard": {}, "equal": [], "drops": []}
    with word_errors.start_word_judge(str(folder)) as judge:
        assert judge is not None
        judge.known = state["heard"]
        run(judge, folder, count, state, state_file)
    sys.stdout.write("| servers | tests | wer | deletions | within --slo |\n|---|---|---|---|---|\n")
    sys.stdout.write(row("equal", state["equal"]) + row("1 of 20 words is left out", state["drops"]))


if __name__ == "__main__":
    main()
