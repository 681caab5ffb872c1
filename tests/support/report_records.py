"""Records of verifications, searches and benchmarks with a bit of everything, for tests of reports."""

from __future__ import annotations

import math
import random
from typing import Any

import msgspec
import numpy as np

from omni_cli.config.gate_limits import GateLimits, QualityLimit
from omni_cli.records.record import Failures, KeptOutput, Memory, Record, Sample, Variant
from omni_cli.records.results import BreakEven, Comparison, MeasureMean, Outputs
from omni_cli.records.tune_record import Candidate, Round, TuneRecord
from omni_cli.records.verify_record import DifferentPair, MeanMax, Row, VerifyRecord
from omni_cli.requests.encoding import encode_png, encode_wav
from omni_cli.stats.race import conclude
from omni_cli.stats.verdicts import ComparisonSpec
from support.bench_records import pair, record

EVIL = "<script>alert(1)</script>"
IMAGE = encode_png(np.zeros((4, 4, 3), np.uint8))
SOUND = encode_wav(np.zeros(100, np.float32), 24000)


def image(text: str) -> KeptOutput:
    return KeptOutput(name="0.image.0", kind="image", data=IMAGE, text=text)


def sound(text: str) -> KeptOutput:
    return KeptOutput(name="0.audio.0", kind="audio", data=SOUND, text=text)


VERIFY_ROWS = (
    Row(check="reference", stage="thinker", verdict="equal", logprob_diff=MeanMax(mean=1e-6, max=2e-5), same_top=1.0),
    Row(
        check="reference", stage="talker", verdict="near tie", request="text 0", position=7, expected="12", got="13",
        expected_probability=0.31, got_probability=0.3, margin=0.03,
    ),
    Row(
        check="streamed = whole", stage="thinker", verdict="different", request=EVIL, why="the text differs",
        pair=DifferentPair(expected_text=f"a long {EVIL} road home", got_text="a long  road home"),
    ),
    Row(
        check="reference", stage="image", verdict="different", max_abs_diff=9.0, psnr_db=31.25,
        pair=DifferentPair(expected=image("4x4"), got=image("4x4")),
    ),
    Row(
        check="repeat", stage="token2wav", verdict="different", mode="without prefix cache",
        pair=DifferentPair(expected=sound("0.1 s"), got=sound("0.2 s")),
    ),
    Row(check="seed", stage="token2wav", verdict="not checked", why="it has none"),
)  # fmt: skip


def verify_record(rows: tuple[Row, ...] = VERIFY_ROWS) -> VerifyRecord:
    return VerifyRecord(
        created="2026-11-27T00:00:00Z", command=("omni", "verify"), environment={"machine": {"cpu": "a CPU"}},
        subject={"profile": "tiny-omni", "dtype": "float32"}, rows=rows, elapsed_s=12.0,
    )  # fmt: skip


COSTS = {"execution=eager": 0.2, f"execution={EVIL}": 0.1, "steps=50": 0.5}


def tune_record(rounds: int = 6) -> TuneRecord:
    rng = random.Random(0)

    def variant(name: str) -> Variant:
        samples = tuple(
            Sample(block=block, position=position, e2e_s=COSTS[name] * math.exp(rng.gauss(0, 0.01)))
            for block, position in ((0, list(COSTS).index(name)), (1, list(COSTS).index(name)))
        )
        return Variant(name=name, samples=samples, memory=Memory(peak_host_rss_bytes=int(COSTS[name] * 2**30)))

    outputs = [None, Outputs(False, 0.1, psnr_db=40.0), Outputs(False, 0.5, psnr_db=20.0)]
    candidates = [Candidate(name=name, outputs=found) for name, found in zip(COSTS, outputs, strict=True)]
    return conclude(
        TuneRecord(
            created="2026-11-22T12:00:00Z",
            environment={},
            workload={"profile": "tiny-image", "stage": "all"},
            objective="e2e_s",
            margin=0.05,
            candidates=(*candidates, Candidate(name="execution=cudagraph", problem="it needs CUDA")),
            rounds=tuple(
                Round(control="execution=eager", batches=(tuple(variant(name) for name in COSTS),))
                for _ in range(rounds)
            ),
        )
    )


def bench_record() -> Record:
    """Two interleaved variants with stages, settings, memory and outputs that differ, a baseline and a gate."""
    counters = {"talker": {"graph_replays": 8.0, "eager_calls": 1.0, "copy_s": 0.2, "copy_hidden_s": 0.1}}
    variants = []
    for number, item in enumerate(pair(12, 1.2, cv=0.01)):
        samples = tuple(
            msgspec.structs.replace(
                sample, execution_counters=counters, metrics={"talker.ttft_s": 0.01, "talker.latency_s": 0.06}
            )
            for sample in item.samples
        )
        memory = Memory(peak_allocated_bytes=2**30 + number * 2**28, stages={"talker": {"run": {}}})
        variants.append(
            msgspec.structs.replace(
                item, samples=samples, settings={"execution": ["eager", "cudagraph"][number]}, memory=memory,
                effective={"engagement": counters}, output_sha256=str(number),
            )
        )  # fmt: skip
    means = {"psnr_db": MeasureMean(8, 41.0, (40.0, 42.0)), "ssim": MeasureMean(8, 0.98, None)}
    outputs = Outputs(False, 9.0, psnr_db=38.5, ssim=0.97, compared=8, means=means)
    gained = BreakEven(mode="b", other="a", gained_s=-0.02, ci95=(-0.021, -0.019), preparation_s=3.0, requests=None)
    known = Comparison(metric="e2e_s", a="a", b="b", outputs=outputs, break_even=gained)
    settings = {"stages": {"talker": {"kind": "ar"}}}
    found = record(
        *variants, stages=["talker"], stage="talker", input_len=8, output_len=16, settings=settings, conditions={}
    )
    found = msgspec.structs.replace(found, comparisons=(known,))
    limits = GateLimits(
        {"e2e_s": 0.05, "peak_allocated_bytes": 0.3, "rtf": 0.1}, quality=(QualityLimit("psnr_db", ">=", 38.0),)
    )
    return ComparisonSpec(limits).report(found).complete_record()


def server_record() -> Record:
    """One server, whose first window had a failed request."""
    samples = []
    for number in range(9):
        times = [0.1 * math.exp(0.3 * math.sin(7 * number + 3 * index)) for index in range(60 - (number == 0))]
        missing = (None,) * (number == 0)
        columns: dict[str, tuple[float | None, ...]] = {
            "start_s": tuple(0.01 * index for index in range(60)),
            "e2e_s": (*times, *missing),
            "ttft_s": (*(time / 2 for time in times), *missing),
        }
        samples.append(
            Sample(
                block=number, position=0, e2e_s=sorted(times)[30], requests=columns, work={"requests": len(times)},
                metrics={"ttft_s": 0.05, "ttft_p90_s": 0.1, "requests_per_second": 10.0},
                failures={} if number else {"HTTP 429 queue_full": Failures(count=1, first="64 are inside")},
            )
        )  # fmt: skip
    server = Variant(name="http://127.0.0.1:8000", settings={"model": "tiny-omni"}, samples=tuple(samples))
    workload: dict[str, Any] = {
        "endpoint": "chat",
        "input_len": 32,
        "input_unit": "words",
        "output_len": 32,
        "slo": {"ttft": 0.2},
    }
    return record(server, kind="server", load={"concurrency": 4}, num_requests=60, **workload)
