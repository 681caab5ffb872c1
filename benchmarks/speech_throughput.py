"""Eight texts spoken at once by omni, interleaved with its reference, one after another, on a small model.

    python benchmarks/speech_throughput.py [--profile tiny-vibevoice|tiny-higgs-audio] [--rounds 5]
    python benchmarks/speech_throughput.py --profile tiny-qwen3-tts --reference-python PATH

The reference is transformers' `generate`, or the publisher's package, in the Python of `make reference-qwen3-tts`.

The same texts and seeds in float32, greedy; both sides make equally many samples, or nothing is printed. One unmeasured
round of each side warms it up, and each side idles while the other is measured. Goal: at least 3 times as fast.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

# Scripts have their own folder on the path, and omni_cli may not be installed.
sys.path.insert(1, str(Path(__file__).resolve().parent.parent))

from common import interleaved, machine_line, ratio_of_medians

from omni_cli.checkpoints.files import read_family
from omni_cli.checkpoints.resolve import resolve_model
from omni_cli.config.families import load
from omni_cli.config.loader import load_profile
from omni_cli.core.compat.libraries import prepare_libraries
from omni_cli.engine.omni_llm import OmniLLM
from omni_cli.models.scores import Way
from omni_cli.requests.outputs import AudioOutput, GenerateRequest

GOAL = 3.0
OMNI, REFERENCE = "omni", "reference"
MAX_TOKENS = {
    "tiny-vibevoice": ("speaker", 64),
    "tiny-higgs-audio": ("backbone", 128),
    "tiny-qwen3-tts": ("talker", 32),
}
TEXTS = (
    "Hello.", "What is the capital of France?", "Tell me a story about the rain on a tin roof.", "One, two, three.",
    "In the evening the boats come home.", "A day in May.", "The lighthouse is red.", "And now, the weather.",
)  # fmt: skip
REQUESTS = [GenerateRequest(str(seed), text, seed=seed) for seed, text in enumerate(TEXTS)]


def overrides(profile: str) -> list[str]:
    stage, count = MAX_TOKENS[profile]
    return [f"{stage}.sampling.max_tokens={count}", f"{stage}.sampling.temperature=0"]


def serve(profile: str, python: tuple[str, ...], connection: Connection) -> None:
    """Run the reference's side on request, in a process of its own: omni's settings of OpenMP must not slow it down."""
    prepare_libraries()
    config = load_profile(profile, overrides(profile))
    folder = Path(resolve_model(config.model))
    reference = load(read_family(folder).reference)(folder, config, Way("float32"), *python)
    connection.send(None)
    while True:
        try:
            connection.recv()
        except EOFError:
            return
        began_s = time.perf_counter()
        spoken = [reference.speak(request) for request in REQUESTS]
        connection.send((time.perf_counter() - began_s, [len(speech.waveform) for speech in spoken]))


async def speak(llm: OmniLLM, request: GenerateRequest) -> int:
    async for event in llm.generate(request):
        last = event
    if last.error is not None:
        raise last.error
    return sum(len(output.samples) for output in last.outputs if isinstance(output, AudioOutput))


async def measure(profile: str, connection: Connection, rounds: int) -> dict[str, list[float]]:
    llm = OmniLLM(load_profile(profile, overrides(profile)))
    times: dict[str, list[float]] = {OMNI: [], REFERENCE: []}

    async def run(side: str) -> tuple[float, list[int]]:
        if side == REFERENCE:
            connection.send(None)
            return await asyncio.to_thread(connection.recv)
        began_s = time.perf_counter()
        lengths = await asyncio.gather(*(speak(llm, request) for request in REQUESTS))
        return time.perf_counter() - began_s, list(lengths)

    try:
        await llm.start()
        (_, expected), (_, made) = await run(REFERENCE), await run(OMNI)
        if made != expected:
            raise SystemExit(f"error: samples differ: omni {made}, reference {expected}")
        for turn, side in interleaved((OMNI, REFERENCE), rounds):
            seconds, _ = await run(side)
            times[side].append(seconds)
            sys.stderr.write(f"round {turn + 1}/{rounds}   {side:12}   {seconds:.2f} s\n")
    finally:
        await llm.close()
    sys.stdout.write(f"{sum(made)} samples of {len(REQUESTS)} requests on both sides\n")
    return times


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", choices=MAX_TOKENS, default="tiny-vibevoice")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--reference-python", help="Python with the publisher's package, for tiny-qwen3-tts")
    arguments = parser.parse_args()
    python = (arguments.reference_python,) if arguments.reference_python else ()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(arguments.profile, python, theirs), daemon=True)
    process.start()
    theirs.close()  # so that its end is noticed here
    ours.recv()
    try:
        times = asyncio.run(measure(arguments.profile, ours, arguments.rounds))
    finally:
        process.kill()
    ratio = ratio_of_medians(times[REFERENCE], times[OMNI])
    sys.stdout.write(f"{arguments.profile}: reference / omni {ratio} (goal {GOAL:g})\n{machine_line()}\n")
    return int(ratio.value < GOAL)


if __name__ == "__main__":
    sys.exit(main())
