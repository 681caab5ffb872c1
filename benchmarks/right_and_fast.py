"""Answers that are in time and say their text: `omni loadtest A B --slo wer:10%` on servers that speak, with espeak-ng.

python benchmarks/right_and_fast.py FOLDER [RUNS] [STATE]

FOLDER is a Whisper, such as that of scripts/whisper_tiny.py. Per pair of servers RUNS tests are made, 20 by default: of
two equal ones, and of one that speaks every text against one that drops 1 of 20 words. An answer is one of six takes
of its sentence, which differ in rate, pitch and the words that they drop, so that the recogniser errs differently on
both sides. STATE keeps what was heard and the verdicts: equal sounds are heard once, and a stopped run goes on. A last
test against a server that drops words hears every answer, as a user's has to be heard: its seconds are the price.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ.setdefault("OMP_NUM_THREADS", "1")

from aiohttp import web
from msgspec.structs import replace

from omni_cli.cli.app import run as run_omni
from omni_cli.measure.bench import quality
from omni_cli.records.record import Variant, load_record
from omni_cli.stats.compare import compare_variants

SUBJECTS = ["the doctor", "my brother", "the old teacher", "a young farmer", "our neighbour", "the captain"]
VERBS = ["bought", "carried", "painted", "forgot", "sold", "found"]
OBJECTS = ["seven apples", "a wooden chair", "the green window", "twenty letters", "two heavy boxes", "a loaf of bread"]
PLACES = ["on the way to the station", "before the long winter", "in the middle of the night", "near the quiet river"]
NUM_SENTENCES, NUM_TAKES, NUM_VOICES, DROPPED = 60, 6, 3, 0.05
ANSWER_S, WINDOW = 0.05, 10
METRICS = ("wer", "deletions", "slo_attainment")
FEW, SOME, ALL = 8, 12, 20  # windows


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


def cpu_s() -> float:
    """Return the processor's seconds of this process, which has the servers too, and of the one that hears."""
    pids = [child.pid for child in multiprocessing.active_children()]
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    ticks = sum(int(field) for fields in stats for field in fields[11:15])
    return sum(os.times()[:4]) + ticks / os.sysconf("SC_CLK_TCK")


def find(a: Variant, b: Variant, windows: int) -> dict[str, str]:
    """Return the verdict on each kind of words after so many windows of each."""
    a, b = (
        replace(item, samples=tuple(s for s in item.samples if s.number <= item.samples[0].number + windows - 1))
        for item in (a, b)
    )
    found = compare_variants(a, b, same_record=True, metrics=METRICS[:2])
    return {item.result.metric: item.result.verdict for item in found}


def test(
    judge: quality.WordJudge, folder: Path, dropped: float, number: int, spoken: dict[tuple[str, int], bytes]
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
        known, began_s, began_cpu_s = len(judge.known), time.monotonic(), cpu_s()
        arguments = ["loadtest", a, b, "--endpoint", "speech", "--requests", str(requests), "-q", "--seed", str(number)]
        arguments += ["--slo", "wer:10%", "--slo", "e2e:5s", "--quality", f"wer={folder}", "--output-json", str(record)]
        arguments += ["--num-requests", str(WINDOW), "--num-iters-warmup", "1", "--time-budget", "3600"]
        arguments += ["--extra-body", '{"response_format": "wav"}', "--num-iters", str(ALL)]
        loaded = patch.object(quality, "start_word_judge", lambda _folder: nullcontext(judge))
        with loaded, patch.object(sys, "argv", ["omni", *arguments]):
            code = run_omni(arguments)
        took_s, took_cpu_s = time.monotonic() - began_s, cpu_s() - began_cpu_s
        if code not in (0, 3):
            raise SystemExit(f"omni loadtest ended with {code}")
        found = load_record(record)
    compared = {item.metric: item for item in found.comparisons}
    return {
        "took_s": took_s,
        "cpu_s": took_cpu_s,
        "heard": len(judge.known) - known,
        "after": {windows: find(*found.variants, windows) for windows in (FEW, SOME, ALL)},
        **{name: (compared[name].a_median, compared[name].b_median, compared[name].verdict) for name in METRICS},
    }


class Forgetful(quality.WordJudge):
    """Hears every answer, also one that is equal to an earlier one."""

    def judge(self, answers: Sequence[quality.Utterance]) -> list[dict[str, float]]:
        earlier, self.known = self.known, {}
        try:
            return super().judge(answers)
        finally:
            self.known = earlier | {str(len(earlier) + place): {} for place in range(len(answers))}


def count(verdicts: list[str]) -> str:
    """Say how often a metric was called worse, or better."""
    return f"{verdicts.count('slower')} worse, {verdicts.count('faster')} better"


def row(name: str, tests: list[dict[str, Any]]) -> str:
    """Format a row of the table: the medians of each metric, and its verdicts."""
    cells = [name, str(len(tests))]
    for metric in METRICS:
        a, b = (statistics.median(item[metric][side] for item in tests) for side in (0, 1))
        cells.append(f"{a:.1%} / {b:.1%}: {count([item[metric][2] for item in tests])}")
    return f"| {' | '.join(cells)} |\n"


def after(name: str, tests: list[dict[str, Any]]) -> str:
    """Format rows of the verdicts on words after fewer windows."""
    rows = []
    for windows in (FEW, SOME, ALL):
        found = [item["after"][str(windows)] for item in tests]
        cells = [name, str(windows * WINDOW), *(count([item[metric] for item in found]) for metric in METRICS[:2])]
        rows.append(f"| {' | '.join(cells)} |\n")
    return "".join(rows)


def run(judge: quality.WordJudge, folder: Path, count: int, state: dict[str, Any], state_file: Path) -> None:
    """Make the tests that the state lacks; what was heard stays if one is stopped."""
    spoken: dict[tuple[str, int], bytes] = {}
    forgetful = Forgetful(judge._process, str(folder))
    for name, dropped, tests, ears in (
        ("equal", 0.0, count, judge), ("drops", DROPPED, count, judge), ("hears all", DROPPED, 1, forgetful),
    ):  # fmt: skip
        for number in range(len(state.setdefault(name, [])), tests):
            try:
                found = test(ears, folder, dropped, 2 * number + (dropped > 0), spoken)
                state[name].append(json.loads(json.dumps(found)))
            finally:
                state_file.write_text(json.dumps(state))
            sys.stderr.write(f"{number} {name}: {state[name][-1]}\n")


def main() -> None:
    folder, count = Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 20
    state_file = Path(sys.argv[3] if len(sys.argv) > 3 else "right_and_fast.json")
    state = json.loads(state_file.read_text()) if state_file.exists() else {"heard": {}}
    with quality.start_word_judge(str(folder)) as judge:
        assert judge is not None
        judge.known = state["heard"]
        run(judge, folder, count, state, state_file)
    sys.stdout.write("| servers | tests | wer | deletions | within --slo |\n|---|---|---|---|---|\n")
    sys.stdout.write(row("equal", state["equal"]) + row("1 of 20 words is left out", state["drops"]))
    sys.stdout.write(row("the same, all heard", state["hears all"]))
    sys.stdout.write("\n| servers | answers of each | wer | deletions |\n|---|---|---|---|\n")
    sys.stdout.write(after("equal", state["equal"]) + after("1 of 20 words is left out", state["drops"]) + "\n")
    for test_of_all in state["hears all"]:
        sys.stdout.write(
            "{heard} answers heard, in {took_s:.0f} s, {cpu_s:.0f} s of processors\n".format(**test_of_all)
        )


if __name__ == "__main__":
    main()
