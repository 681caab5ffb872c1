"""Time that `omni bench` adds to its own measurements.

    python benchmarks/bench_overhead.py [--pairs 200] [--rounds 8] [--num-iters 40] [--json]

The workload is one image of `tiny-image`: short, so that an overhead weighs most. The bare side is a hand-written loop:
a started `OmniLLM`, `time.perf_counter` before a request is sent and after its last event. Both sides use the same
prompts and seeds, and the images are compared. Two comparisons, each in ABBA order:

* `iterations`: interleaved single iterations of both sides on the same loaded stages, bench's through the object that
  answers in a variant's process (`VariantWorker`). Only the code around the request differs, so this is the precise
  one; it excludes the pipe to the command and the command's work between blocks.
* `runs`: interleaved whole short runs, `omni bench --num-iters N` as users type it against a process with the bare
  loop, each with its own stages. Includes everything, and the differences between processes, too.

For a machine that is too busy for these, `fixed` puts the same code around a piece of work that varies little, and
`empty` times requests that are answered immediately, so that only the code around a request is left: microseconds per
request, with hardly any noise. These two do not show effects of bench on the stages.

The figure is the ratio bench / bare, estimated as `omni bench` compares variants: from the ratios of neighbours, with a
95 % bootstrap interval over pairs, or over rounds of medians of a run. The goal is within 1 %.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from common import Ratio, interleaved, machine, machine_line, ratio_of_pairs

from omni_cli.checkpoints.resolve import resolve_model
from omni_cli.config.loader import load_profile
from omni_cli.engine.omni_llm import OmniLLM
from omni_cli.measure.bench.loaded_workload import run_all
from omni_cli.measure.bench.outputs import hash_arrays, output_arrays
from omni_cli.measure.bench.prompts import Prompts
from omni_cli.measure.bench.protocol import Close, Failed, Load, Loaded, Loading, Ran, Run
from omni_cli.measure.bench.variant_worker import VariantWorker
from omni_cli.records.record import load_record
from omni_cli.requests.contents import TextOptions
from omni_cli.requests.outputs import GenerateRequest, RequestResult

PROFILE, STAGE = "tiny-image", "diffusion"
INPUT_LEN = 32
WARMUP = 3
EMPTY_PAIRS = 5000
FIXED_PAIRS = 600
MIN_COUNT = 8
TOLERANCE = 0.01
SIDES = ("bare", "bench")


@dataclass(frozen=True)
class Result:
    """Medians in seconds; `count` is the number of pairs or rounds."""

    comparison: str
    bare_s: float
    bench_s: float
    ratio: Ratio
    count: int
    unit: str

    @classmethod
    def of(cls, comparison: str, seconds: dict[str, list[float]], unit: str) -> Result:
        bare, bench = (seconds[side] for side in SIDES)
        ratio = ratio_of_pairs(bench, bare)
        return cls(comparison, statistics.median(bare), statistics.median(bench), ratio, len(bare), unit)

    @property
    def goal(self) -> str:
        """Judge only by an interval on one side of the tolerance; a few rounds do not give one."""
        if self.count < MIN_COUNT:
            return "undecided"
        low, high = self.ratio.low - 1, self.ratio.high - 1
        if low >= -TOLERANCE and high <= TOLERANCE:
            return "met"
        return "not met" if low > TOLERANCE or high < -TOLERANCE else "undecided"

    def __str__(self) -> str:
        ratio = self.ratio
        return (
            f"{self.comparison:10} bare {self.bare_s * 1e3:8.3f} ms   bench {self.bench_s * 1e3:8.3f} ms   "
            f"ratio {ratio.value:.4f} [{ratio.low:.4f}, {ratio.high:.4f}]   {self.count} {self.unit}   {self.goal}"
        )


class Bare:
    """The hand-written loop, over stages that are already loaded."""

    def __init__(self, llm: OmniLLM) -> None:
        self._llm = llm
        self._prompts = Prompts(resolve_model(llm.config.model), INPUT_LEN)

    async def iterate(self, number: int) -> tuple[float, RequestResult]:
        """Seconds of request `number`, with the prompt and seed of bench's iteration of that number."""
        prompt, seed = self._prompts.draw(number, 0), self._llm.config.seed + number
        request = GenerateRequest(request_id=f"bare-{number}", prompt=prompt, text=TextOptions(raw=True), seed=seed)
        return await bare_request(self._llm, request)


async def bare_request(llm: OmniLLM | Empty, request: GenerateRequest) -> tuple[float, RequestResult]:
    """Seconds of a request, and its result."""
    start = time.perf_counter()
    async for event in llm.generate(request):
        last = event
    seconds = time.perf_counter() - start
    if last.error is not None:
        raise last.error
    return seconds, last


class Empty:
    """No stages: answers immediately."""

    stages = ()

    async def generate(self, request: GenerateRequest) -> AsyncIterator[RequestResult]:
        yield RequestResult(request.request_id, (), ())


class Fixed(Empty):
    """No stages either: answers after a fixed piece of work, about 20 ms of one core, without yielding the thread.

    The work is not the interpreter's, whose speed depends on the depth of the stack at that moment.
    """

    def __init__(self) -> None:
        self._data = bytes(25_000_000)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[RequestResult]:
        hashlib.sha256(self._data).digest()
        yield RequestResult(request.request_id, (), ())


async def around(llm: Empty, pairs: int) -> dict[str, list[float]]:
    """Seconds of `pairs` pairs of requests, with bench's code around them and without, interleaved."""
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    for number, (_, side) in enumerate(interleaved(SIDES, pairs)):
        request = GenerateRequest(request_id=str(number), prompt="")
        taken = (await bare_request(llm, request))[0] if side == "bare" else (await run_all(llm, [request])).e2e_s
        seconds[side].append(taken)
    return seconds


async def added_s(pairs: int) -> float:
    """Seconds that bench's code adds to a request: the difference of the medians of `pairs` pairs."""
    seconds = await around(Empty(), pairs)
    return statistics.median(seconds["bench"]) - statistics.median(seconds["bare"])


class Bench:
    """Bench's end of a variant in this process: answers the requests that the command sends through the pipe."""

    def __init__(self) -> None:
        self._replies: asyncio.Queue = asyncio.Queue()
        self._requests: asyncio.Queue = asyncio.Queue()
        self._worker = VariantWorker(self._replies.put_nowait)
        self._serving = asyncio.create_task(self._worker.serve(self._requests))

    async def load(self) -> OmniLLM:
        """Load the stages, for the other side to use as well."""
        load = Load(
            profile=PROFILE, overrides=(), model=None, seed=None, trust_remote_code=False, stage=STAGE, batch_size=1,
            input_len=INPUT_LEN, output_len=INPUT_LEN, given_lengths=(), inputs="", records_inputs=False,
        )  # fmt: skip
        await self._ask(load, Loaded)
        return self._worker._workload.llm

    async def iterate(self, number: int) -> Ran:
        return await self._ask(Run(number), Ran)

    async def close(self) -> None:
        self._requests.put_nowait(Close())
        await self._serving
        await self._worker.close()

    async def _ask(self, request: Load | Run, answer: type) -> Loaded | Ran:
        self._requests.put_nowait(request)
        while True:
            reply = await self._replies.get()
            if isinstance(reply, answer):
                return reply
            if isinstance(reply, Failed):
                raise reply.failure.error(STAGE)
            assert isinstance(reply, Loading), reply


async def iterations(pairs: int) -> Result:
    """Interleaved single iterations on the same loaded stages."""
    bench = Bench()
    try:
        bare = Bare(await bench.load())
        for number in range(WARMUP):
            await _check_same_image(bare, bench, number)
        seconds: dict[str, list[float]] = {side: [] for side in SIDES}
        # Each iteration has its own number, because the stage caches prompts that it has encoded.
        for number, (_, side) in enumerate(interleaved(SIDES, pairs), start=WARMUP):
            taken = (await bare.iterate(number))[0] if side == "bare" else (await bench.iterate(number)).e2e_s
            seconds[side].append(taken)
    finally:
        await bench.close()
    return Result.of("iterations", seconds, "pairs")


async def _check_same_image(bare: Bare, bench: Bench, number: int) -> None:
    _, result = await bare.iterate(number)
    ran = await bench.iterate(number)
    if hash_arrays(output_arrays([result])) != ran.output_sha256:
        raise SystemExit(f"the images of iteration {number} differ: the two sides do different work")


def whole_runs(rounds: int, num_iters: int) -> Result:
    """Interleaved whole runs; the median of each."""
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as folder:
        for _, side in interleaved(SIDES, rounds):
            run = _run_bare if side == "bare" else _run_bench
            seconds[side].append(statistics.median(run(num_iters, Path(folder))))
    return Result.of("runs", seconds, f"rounds of {num_iters} iterations")


def _run_bench(num_iters: int, folder: Path) -> list[float]:
    record = folder / "record.json"
    options = ["--profile", PROFILE, "--stage", STAGE, "--input-len", INPUT_LEN, "--num-iters", num_iters]
    options += ["--num-iters-warmup", WARMUP, "--output-json", record, "--quiet"]
    _run(["-m", "omni_cli", "bench", *options])
    (variant,) = load_record(record).variants
    return [sample.e2e_s for sample in variant.samples]


def _run_bare(num_iters: int, folder: Path) -> list[float]:
    return json.loads(_run([__file__, "--bare-run", num_iters]))


def _run(arguments: Sequence[object]) -> str:
    finished = subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True)
    if finished.returncode:
        raise SystemExit(f"`{' '.join(map(str, arguments))}` ended with {finished.returncode}:\n{finished.stderr}")
    return finished.stdout


async def bare_run(num_iters: int) -> list[float]:
    """The bare side of `runs`, printed by `--bare-run`."""
    llm = OmniLLM(load_profile(PROFILE))
    await llm.start()
    try:
        bare = Bare(llm)
        seconds = [(await bare.iterate(number))[0] for number in range(WARMUP + num_iters)]
    finally:
        await llm.close()
    return seconds[WARMUP:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=200, help="pairs of single iterations; 0: skip this comparison")
    parser.add_argument("--rounds", type=int, default=8, help="rounds of whole runs; 0: skip this comparison")
    parser.add_argument("--num-iters", type=int, default=40, help="iterations of a whole run")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--bare-run", type=int, metavar="N", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.bare_run:
        sys.stdout.write(json.dumps(asyncio.run(bare_run(options.bare_run))) + "\n")
        return 0
    before = machine_line()
    empty_s = asyncio.run(added_s(EMPTY_PAIRS))
    fixed = asyncio.run(around(Fixed(), FIXED_PAIRS))
    results = [Result.of("fixed", fixed, "pairs")]
    results += [asyncio.run(iterations(options.pairs))] if options.pairs else []
    results += [whole_runs(options.rounds, options.num_iters)] if options.rounds else []
    if options.json:
        documents = [{**asdict(result), "goal": result.goal} for result in results]
        sys.stdout.write(
            json.dumps({"machine": machine(), "tolerance": TOLERANCE, "empty_s": empty_s, "results": documents}) + "\n"
        )
        return 0
    lines = [*map(str, results), f"empty      bench adds {empty_s * 1e6:.1f} µs   {EMPTY_PAIRS} pairs"]
    lines += [f"goal: the interval of the ratio within {TOLERANCE:.0%} of 1", before]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
