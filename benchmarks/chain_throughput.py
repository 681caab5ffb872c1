"""Eight concurrent requests through omni, interleaved with Hugging Face one after another, on `small-omni`.

    python benchmarks/chain_throughput.py [--rounds 5] [--json] [--set STAGE.KEY=VALUE]

The same prompts, greedy, float32, with fixed work: 64 text tokens and 128 codec tokens per request. Both sides make
equally many tokens and samples, or nothing is printed; the number of requests with identical tokens is printed, too.
One unmeasured round of each side warms it up, and each side idles while the other is measured.

For a stage, omni's time is that from the first request entering it to the last one leaving it, with nothing else
running; Hugging Face's is the sum over requests of the time inside `thinker.generate`, `talker.generate` and
`token2wav.forward`. For the chain both are the wall time of all eight. Goals: thinker and talker at least 3 times
faster, token2wav 2.5 times, the chain 3.5 times. `--set` changes a setting of omni's side.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

# Scripts have their own folder on the path, and omni_cli may not be installed.
sys.path.insert(1, str(Path(__file__).resolve().parent.parent))

from chain_huggingface import HuggingFaceProcess
from chain_omni import OmniSide
from chain_workload import CHAIN, PROFILE, STAGES, RequestWork, Round, overrides
from common import Ratio, interleaved, machine, machine_line, ratio_of_medians

from omni_cli.checkpoints.resolve import find_folder, resolve_model
from omni_cli.config.loader import load_profile

GOALS = {"thinker": 3.0, "talker": 3.0, "token2wav": 2.5, CHAIN: 3.5}
OMNI, HUGGING_FACE = "omni", "Hugging Face"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--set", action="append", default=[], metavar="STAGE.KEY=VALUE")
    arguments = parser.parse_args()
    config = load_profile(PROFILE, [*overrides(), *arguments.set])
    _build(config.model)
    # Before omni's fork server, which sets environment variables for its stages.
    hugging_face = HuggingFaceProcess(resolve_model(config.model))
    try:
        rounds = asyncio.run(_measure(OmniSide(config), hugging_face, arguments.rounds))
    finally:
        hugging_face.close()
    problem = _unequal(rounds)
    if problem is not None:
        sys.stderr.write(f"error: {problem}\n")
        return 2
    return _report(rounds, hugging_face.num_threads, as_json=arguments.json)


def _build(model: str) -> None:
    """Build in a separate process, so that this one never imports torch."""
    if find_folder(model) is None:
        code = f"import sys; sys.path[:0] = {sys.path!r}; from omni_cli.checkpoints.resolve import resolve_model as r"
        subprocess.run([sys.executable, "-c", f"{code}; r({model!r})"], check=True)


async def _measure(omni: OmniSide, hugging_face: HuggingFaceProcess, rounds: int) -> dict[str, list[Round]]:
    measured: dict[str, list[Round]] = {OMNI: [], HUGGING_FACE: []}
    try:
        await omni.start()
        await omni.run()
        await asyncio.to_thread(hugging_face.run)
        for turn, side in interleaved((OMNI, HUGGING_FACE), rounds):
            done = await (omni.run() if side == OMNI else asyncio.to_thread(hugging_face.run))
            measured[side].append(done)
            times = "   ".join(f"{name} {seconds:.2f} s" for name, seconds in done.seconds.items())
            sys.stderr.write(f"round {turn + 1}/{rounds}   {side:12}   {times}\n")
    finally:
        await omni.close()
    return measured


def _unequal(rounds: dict[str, list[Round]]) -> str | None:
    """Reason why the two sides' work differs in size; None if it does not."""
    for side, done in rounds.items():
        sizes = [[request.size for request in one.work] for one in done]
        if any(size != sizes[0] for size in sizes):
            return f"{side} did different work in different rounds: {sizes}"
    of_omni, of_hugging_face = ([request.size for request in done[0].work] for done in rounds.values())
    if of_omni != of_hugging_face:
        return f"(text tokens, codec tokens, samples) differ: omni {of_omni}, Hugging Face {of_hugging_face}"
    return None


def _report(rounds: dict[str, list[Round]], num_threads: int, *, as_json: bool) -> int:
    """Print the result; return 1 if a goal is missed."""
    times = {side: {name: [one.seconds[name] for one in done] for name in GOALS} for side, done in rounds.items()}
    ratios = {name: ratio_of_medians(times[HUGGING_FACE][name], times[OMNI][name]) for name in GOALS}
    missed = any(ratio.value < GOALS[name] for name, ratio in ratios.items())
    identical = _identical(rounds[OMNI][0].work, rounds[HUGGING_FACE][0].work)
    if as_json:
        shown = {name: asdict(ratio) for name, ratio in ratios.items()}
        record = {"machine": machine(), "goals": GOALS, "identical": identical, "times_s": times, "speedups": shown}
        sys.stdout.write(json.dumps(record) + "\n")
        return int(missed)
    for name in (*STAGES, CHAIN):
        sys.stdout.write(_line(name, times, ratios[name]))
    text, codec, samples = rounds[OMNI][0].work[0].size
    sys.stdout.write(
        f"{len(rounds[OMNI])} rounds of {identical['requests']} requests: {text} text tokens, {codec} codec tokens, "
        f"{samples} samples each on both sides\n"
        f"identical tokens: text {identical['text']}, codec {identical['codec']} of {identical['requests']} requests\n"
        f"{machine_line()}   Hugging Face's torch threads {num_threads}\n"
    )
    return int(missed)


def _line(name: str, times: dict[str, dict[str, list[float]]], ratio: Ratio) -> str:
    omni, hugging_face = (statistics.median(times[side][name]) for side in (OMNI, HUGGING_FACE))
    verdict = "met" if ratio.value >= GOALS[name] else "missed"
    return (
        f"{name:10} omni {omni:7.3f} s   Hugging Face {hugging_face:7.3f} s   {ratio} times faster   "
        f"goal: at least {GOALS[name]:g}, {verdict}\n"
    )


def _identical(omni: Sequence[RequestWork], hugging_face: Sequence[RequestWork]) -> dict[str, int]:
    pairs = list(zip(omni, hugging_face, strict=True))
    return {
        "requests": len(pairs),
        "text": sum(ours.text_token_ids == theirs.text_token_ids for ours, theirs in pairs),
        "codec": sum(ours.codec_token_ids == theirs.codec_token_ids for ours, theirs in pairs),
    }


if __name__ == "__main__":
    sys.exit(main())
