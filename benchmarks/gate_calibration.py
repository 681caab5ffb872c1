"""Error rates of the gate: false alarms of A against A, and missed slowdowns.

    python benchmarks/gate_calibration.py                        # simulated noise
    python benchmarks/gate_calibration.py --order-bias 0.02      # and a bias of the order of loading
    python benchmarks/gate_calibration.py --measure 600 --save noise.json
    python benchmarks/gate_calibration.py --record noise.json    # replays of a measurement
    python benchmarks/gate_calibration.py --measure-loads 16 --save loads.json
    python benchmarks/gate_calibration.py --loads loads.json

Each replay is a whole sequential run, as `omni bench` makes it: blocks arrive, the interval is checked after the
planned numbers of blocks, and the run stops at the first verdict or when the time budget is used up. Without a gate the
verdicts are faster, slower, no difference and inconclusive; with one (`--limit`) pass, regression, inconclusive.

Sources of slowdowns:

* simulated noise (AR(1) over single runs, lag-1 autocorrelation and coefficient of variation as measured on a shared
    machine with two cores): the simulated time is multiplied, so that this shows only the statistics;
* `--measure`: real work. Four variants of a fixed computation are interleaved in one process, in palindromic blocks
  (A A' B3 B5 B5 B3 A' A): A and A' are the same, B3 and B5 make 3 % and 5 % more rounds of the same work. Replays are
  stretches of consecutive blocks of that record, starting at evenly spaced blocks (they overlap if the record is
  shorter than all replays together, which the output reports).

* `--measure-loads N`: N times the same stage (`tiny-image`), each loaded in a separate process as `omni bench` loads
  its variants, interleaved in an order that is drawn again for every block. Replays are all ordered pairs of them, A
  against A: false alarms show whatever makes two loads of the same code differ, which no single process reveals.

With `--order-bias`, the variants of any source are loaded again in the other order at half time, as on a CPU.

Rates are printed with the 95 % Wilson interval of a proportion.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from common import machine, machine_line, wilson
from msgspec import UNSET, structs

from omni_cli.config.gate_limits import GateLimits
from omni_cli.measure.bench.schedule import Halves
from omni_cli.records.record import Record, Sample, StoppingPlan, Variant, load_record, workload_fingerprint
from omni_cli.records.record_file import save_record
from omni_cli.stats.compare import compare_variants
from omni_cli.stats.gate import judge
from omni_cli.stats.sequential import plan_looks

LAG1 = 0.75
CV = 0.05
NAMES = ("A", "A'", "B3", "B5")
SHARES = {"A": 1.0, "A'": 1.0, "B3": 1.03, "B5": 1.05}
# Goals of the project: (scenario, gated, verdicts that are counted, bound, whether it is an upper bound).
GOALS = (
    ("A/A", False, ("faster", "slower"), 0.01, True),
    ("A/A", True, ("regression",), 0.01, True),
    ("+5%", True, ("regression",), 0.95, False),
    ("+3%", True, ("regression",), 0.80, False),
    ("+5%", True, ("pass",), 0.0, True),
)


@dataclass(frozen=True)
class Outcome:
    """Result of one replay, and its number of blocks."""

    verdict: str
    blocks: int


def main() -> int:
    options = _options()
    if options.measure:
        record = _measure(options.measure)
        save_record(record, options.save)
        sys.stdout.write(f"{len(record.variants[0].samples)} runs of each variant in {options.save}\n")
        return 0
    if options.measure_loads:
        record = asyncio.run(_measure_loads(options.measure_loads, options.blocks))
        save_record(record, options.save)
        sys.stdout.write(f"{options.blocks} runs of each of {options.measure_loads} loads in {options.save}\n")
        return 0
    if options.loads:
        sources = [(str(path), _pairs_of_loads(load_record(path), options)) for path in options.loads]
    elif options.record:
        sources = [(str(path), _recorded(load_record(path), options)) for path in options.record]
    else:
        sources = [
            (
                f"simulated, a run takes {run_s * 1000:g} ms, lag-1 autocorrelation {LAG1}, CV {CV:.0%}",
                _simulated(run_s, options),
            )
            for run_s in options.run_s
        ]
    document = {
        "machine": machine(), "limit": options.limit, "budget_s": options.budget_s, "replays": options.replays,
        "results": [],
    }  # fmt: skip
    _say(options, machine_line())
    _say(options, f"limit {options.limit:.0%}, budget {options.budget_s:g} s per comparison, {options.replays} replays")
    for title, replays in sources:
        document["results"].append({"title": title, **_calibrate(title, replays, options)})
    if options.json:
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replays", type=int, default=400)
    parser.add_argument("--limit", type=float, default=0.02, help="the gate's limit (0.02 is 2 %%)")
    parser.add_argument("--budget-s", type=float, default=60.0)
    parser.add_argument("--order-bias", type=float, help="load in both orders; the first-loaded is slower by this")
    parser.add_argument("--run-s", type=float, nargs="*", default=[0.02, 0.084, 0.25])
    parser.add_argument("--record", type=Path, nargs="*", default=[])
    parser.add_argument("--measure", type=float, metavar="SECONDS", help="record real noise for this long")
    parser.add_argument("--measure-loads", type=int, metavar="N", help="record this many loads of one stage")
    parser.add_argument("--blocks", type=int, default=80, help="runs of each load")
    parser.add_argument("--loads", type=Path, nargs="*", default=[])
    parser.add_argument("--save", type=Path, default=Path("noise.json"))
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _say(options: argparse.Namespace, text: str) -> None:
    (sys.stderr if options.json else sys.stdout).write(text + "\n")


def _calibrate(title: str, replays: Iterator[tuple[str, Variant, Variant]], options: argparse.Namespace) -> dict:
    """Run all replays of one source and print the frequency of each verdict."""
    counts: dict[tuple[str, bool], list[Outcome]] = {}
    for scenario, a, b in replays:
        for gated in (False, True):
            outcome = _run(a, b, options.limit if gated else None, options.order_bias)
            counts.setdefault((scenario, gated), []).append(outcome)
    _say(options, f"\n{title}")
    result = {"rates": {}, "goals": []}
    for (scenario, gated), outcomes in sorted(counts.items()):
        verdicts = Counter(outcome.verdict for outcome in outcomes)
        blocks = float(np.median([outcome.blocks for outcome in outcomes]))
        listed = "   ".join(f"{name} {count / len(outcomes):.1%}" for name, count in verdicts.most_common())
        kind = f"gate {options.limit:.0%}" if gated else "verdict"
        _say(options, f"  {scenario:4} {kind:8} {listed}   (median {blocks:g} blocks, {len(outcomes)} replays)")
        result["rates"][f"{scenario} {kind}"] = {"n": len(outcomes), "median_blocks": blocks, **verdicts}
    for scenario, gated, wanted, bound, upper in GOALS:
        outcomes = counts.get((scenario, gated), [])
        if outcomes:
            result["goals"].append(_goal(scenario, wanted, bound, upper, outcomes, options))
    return result


def _goal(scenario: str, wanted: tuple[str, ...], bound: float, upper: bool, outcomes: list[Outcome], options) -> dict:
    hits = sum(outcome.verdict in wanted for outcome in outcomes)
    rate = hits / len(outcomes)
    low, high = wilson(hits, len(outcomes))
    met = rate <= bound if upper else rate >= bound
    text = f"{scenario} is {' or '.join(wanted)}: {rate:.1%} [{low:.1%}, {high:.1%}], at {'most' if upper else 'least'}"
    _say(options, f"  goal: {text} {bound:.0%}: {'met' if met else 'NOT MET'}")
    return {"scenario": scenario, "verdicts": list(wanted), "rate": rate, "bound": bound, "met": met}


def _run(a: Variant, b: Variant, limit: float | None, order_bias: float | None = None) -> Outcome:
    """Add blocks until a look decides; the variants hold all blocks that the budget allows.

    With an `order_bias`, they are loaded again in the other order at half time, and the first-loaded is slower by it.
    """
    total, has_two = 1 + max(sample.block for sample in a.samples), order_bias is not None
    halves = Halves(total, plan_looks(total, orders=2 if has_two else 1), None if has_two else 0)
    for done in range(1, total + 1):
        is_over = halves.is_over(done, 0.0)
        if not is_over and not halves.is_look(done):
            continue
        start = halves.reversed_from or None
        sampling = StoppingPlan(looks=halves.looks, reversed_from=UNSET if start is None else start)
        first, second = range(done if start is None else start), range(total if start is None else start, done)
        seen = [_slowed(a, done, first, order_bias), _slowed(b, done, second, order_bias)]
        (found,) = compare_variants(*seen, same_record=True, sampling=[sampling], metrics=["e2e_s"])
        limits = None if limit is None else GateLimits({"e2e_s": limit})
        verdict = found.result.verdict if limits is None else judge(limits, [found], [], {}).verdict
        if halves.reversed_from is not None and (is_over or verdict != "inconclusive"):
            return Outcome(verdict, done)
        if is_over or verdict != "inconclusive":
            halves = replace(halves, reversed_from=done)
    raise AssertionError("a run ends with its blocks")


def _slowed(variant: Variant, num_blocks: int, blocks: range, bias: float | None) -> Variant:
    """Return the first blocks of a variant, of which these are slower."""
    samples = (sample for sample in variant.samples if sample.block < num_blocks)
    slower = (structs.replace(s, e2e_s=s.e2e_s * (1 + (bias or 0.0) * (s.block in blocks))) for s in samples)
    return Variant(name=variant.name, samples=tuple(slower))


def _simulated(run_s: float, options: argparse.Namespace) -> Iterator[tuple[str, Variant, Variant]]:
    """(scenario, a, b) with AR(1) noise over single runs, in alternating ABBA and BAAB blocks."""
    blocks = max(int(options.budget_s / (4 * run_s)), 1)
    for scenario, factor in (("A/A", 1.0), ("+3%", 1.03), ("+5%", 1.05)):
        rng = np.random.default_rng(int(1000 * factor))
        for _ in range(options.replays):
            times = run_s * np.exp(CV * _autocorrelated(rng, 4 * blocks)).reshape(blocks, 4)
            slots = [(0, 3), (1, 2)], [(1, 2), (0, 3)]
            a = [(block, slot, times[block, slot]) for block in range(blocks) for slot in slots[block % 2][0]]
            b = [(block, slot, times[block, slot] * factor) for block in range(blocks) for slot in slots[block % 2][1]]
            yield scenario, _variant("A", a), _variant("B", b)


def _autocorrelated(rng: np.random.Generator, count: int) -> np.ndarray:
    """Unit-variance AR(1) series, float64 (count,)."""
    noise = rng.standard_normal(count).tolist()
    step = math.sqrt(1 - LAG1**2)
    series = [noise[0]]
    for value in noise[1:]:
        series.append(LAG1 * series[-1] + step * value)
    return np.array(series)


def _variant(name: str, rows: list[tuple[int, int, float]]) -> Variant:
    samples = tuple(Sample(block=block, position=slot, e2e_s=float(value)) for block, slot, value in rows)
    return Variant(name=name, samples=samples)


def _recorded(record: Record, options: argparse.Namespace) -> Iterator[tuple[str, Variant, Variant]]:
    """(scenario, a, b): stretches of consecutive blocks, as many as fit into the budget for two variants."""
    by_name = {variant.name: variant for variant in record.variants}
    total = 1 + max(sample.block for sample in by_name["A"].samples)
    pair_s = sum(sample.e2e_s for name in ("A", "B5") for sample in by_name[name].samples) / total
    blocks = min(int(options.budget_s / pair_s), total)
    starts = np.linspace(0, total - blocks, options.replays).astype(int)
    times = [sample.e2e_s for sample in by_name["A"].samples]
    _say(
        options,
        f"\n{total} blocks recorded, {blocks} per replay, {len(set(starts.tolist()))} different starts "
        f"({total / blocks:.1f} replays without overlap); runs of A: {np.median(times) * 1000:.1f} ms, "
        f"lag-1 autocorrelation {_lag1(times):.2f}, CV {_cv(times):.1%}",
    )
    for scenario, name in (("A/A", "A'"), ("+3%", "B3"), ("+5%", "B5")):
        for start in starts:
            yield scenario, *(_stretch(by_name[which], int(start), blocks) for which in ("A", name))


def _stretch(variant: Variant, start: int, blocks: int) -> Variant:
    rows = [(s.block - start, s.position, s.e2e_s) for s in variant.samples if start <= s.block < start + blocks]
    return _variant(variant.name, rows)


def _pairs_of_loads(record: Record, options: argparse.Namespace) -> Iterator[tuple[str, Variant, Variant]]:
    """(scenario, a, b): every load against every other one, as many blocks as fit into the budget."""
    medians = [np.median([sample.e2e_s for sample in variant.samples]) for variant in record.variants]
    _say(
        options,
        f"\n{len(medians)} loads, {len(record.variants[0].samples)} runs each; medians of the loads: "
        f"{np.median(medians) * 1000:.1f} ms, standard deviation {np.std(medians) / np.mean(medians):.2%}, "
        f"largest by smallest {max(medians) / min(medians):.3f}",
    )
    blocks = len(record.variants[0].samples)
    for a, b in itertools.permutations(record.variants, 2):
        yield "A/A", *(_stretch(variant, 0, blocks) for variant in (a, b))


async def _measure_loads(count: int, blocks: int) -> Record:
    """Real stages in real variants' processes, all loaded at once; one run of each per block."""
    from omni_cli.measure.bench.protocol import Load
    from omni_cli.measure.bench.variant_configs import VariantConfig
    from omni_cli.measure.bench.variant_process import VariantProcess

    load = Load(
        profile="tiny-image", overrides=(), model=None, seed=None, trust_remote_code=False, stage="diffusion",
        batch_size=1, input_len=32, output_len=32, given_lengths=(), inputs="", records_inputs=False,
    )  # fmt: skip
    processes = [VariantProcess(VariantConfig(f"load {number}"), load) for number in range(count)]
    samples: list[list[Sample]] = [[] for _ in processes]
    order = list(range(count))
    shuffled = random.Random(0)
    try:
        for process in processes:
            await process.start()
            await process.load(lambda loading: None)
        for block in range(-3, blocks):  # three to warm up
            shuffled.shuffle(order)
            for position, index in enumerate(order):
                ran = await processes[index].run(block + 3, when=f"block {block}")
                if block >= 0:
                    samples[index].append(Sample(block=block, position=position, e2e_s=ran.e2e_s, work=ran.work))
    finally:
        await asyncio.gather(*(process.close() for process in processes))
    workload = {"work": "one image of tiny-image", "loads": count}
    return Record(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=tuple(sys.argv),
        environment={"machine": machine()},
        workload={**workload, "fingerprint": workload_fingerprint(workload)},
        variants=tuple(
            Variant(name=process.name, samples=tuple(of_one))
            for process, of_one in zip(processes, samples, strict=True)
        ),
    )


def _lag1(values: list[float]) -> float:
    return float(np.corrcoef(values[:-1], values[1:])[0, 1])


def _cv(values: list[float]) -> float:
    return float(np.std(values) / np.mean(values))


def _measure(seconds: float) -> Record:
    """Real runs: the same work in all variants, 3 % and 5 % more rounds of it in B3 and B5."""
    rounds = _rounds_for(0.02)
    counts = {name: round(rounds * share) for name, share in SHARES.items()}
    samples: dict[str, list[Sample]] = {name: [] for name in NAMES}
    data = np.random.default_rng(0).standard_normal(10_000)
    end = time.monotonic() + seconds
    block = 0
    while time.monotonic() < end:
        order = NAMES if block % 2 == 0 else tuple(reversed(NAMES))
        for position, name in enumerate((*order, *reversed(order))):
            start = time.perf_counter()
            _work(data, counts[name])
            took = time.perf_counter() - start
            samples[name].append(Sample(block=block, position=position, e2e_s=took, work={"rounds": counts[name]}))
        block += 1
    workload = {"work": "tanh of 10000 float64, summed", "rounds": counts}
    return Record(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=tuple(sys.argv),
        environment={"machine": machine()},
        workload={**workload, "fingerprint": workload_fingerprint(workload)},
        variants=tuple(Variant(name=name, samples=tuple(samples[name])) for name in NAMES),
    )


def _work(data: np.ndarray, rounds: int) -> float:
    """Do a fixed piece of work per round, about 0.1 ms: memory and arithmetic, as in an engine's step."""
    total = 0.0
    for _ in range(rounds):
        total += float(np.tanh(data).sum())
    return total


def _rounds_for(seconds: float) -> int:
    """Number of rounds that take about `seconds`; at least 200, so that 3 % and 5 % are whole numbers of them."""
    data = np.random.default_rng(0).standard_normal(10_000)
    _work(data, 100)
    start = time.perf_counter()
    _work(data, 200)
    return max(round(seconds / ((time.perf_counter() - start) / 200) / 100) * 100, 200)


if __name__ == "__main__":
    sys.exit(main())
