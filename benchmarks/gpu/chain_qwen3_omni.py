"""Qwen3-Omni-30B-A3B's chain on one GPU, streamed: real-time factor, first audio, and the talker's step in its parts.

    PYTHONPATH=. python benchmarks/gpu/chain_qwen3_omni.py -o DIR [--clients 1 4 8 32] [--rounds 3] [--set KEY=VALUE]...

The bundled profile `qwen3-omni-30b-a3b` at its real sizes, random bfloat16 weights, run by `OmniLLM`. A request has 64
tokens of prompt, 128 of text and 250 frames of codes, the last of which ends the speech: 19.92 s. All requests of a
round enter at once.

RTF is a request's time over that of its audio. A talker's step is split into its forward pass (`backbone`) and its code
predictor, both by the device's clock, and the rest, which is the host's and the sampler's. Medians over steps, but
`talker_tpot_s`, which is the mean.

DIR gets one `omni.bench/1` record, `qwen3-omni.json`, with a variant per number of clients, and the printed summary.
`--tiny` runs a small model on any device that vLLM supports, and is meaningless for speed.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from omni_cli.compat.libraries import prepare_libraries  # isort: skip

prepare_libraries()

import msgspec
import torch
from environment import kit_environment
from qwen3_folder import write_folder
from random_weights import install

from omni_cli.bench.engagement import since
from omni_cli.bench.prompts import Prompts
from omni_cli.config.loader import load_profile
from omni_cli.config.schema import EngineConfig
from omni_cli.engine.omni_llm import OmniLLM
from omni_cli.outputs import AudioChunk, GenerateRequest, RequestResult, StageTrace, TextDelta
from omni_cli.record import Record, Sample, Variant, save_record, workload_fingerprint
from omni_cli.stats.summary import summarise

PROFILES = {False: "qwen3-omni-30b-a3b", True: "tiny-qwen3-omni"}
# The chat template adds the rest of the 64 tokens.
WORDS_IN = {False: 56, True: 8}
SETTINGS = {
    # Sizes given instead of shares, because measuring the room for a KV cache would encode the longest video.
    False: (
        "thinker.max_model_len=4096",
        "talker.max_model_len=4096",
        "thinker.kv_cache_memory_bytes=8589934592",
        "talker.kv_cache_memory_bytes=4294967296",
    ),
    True: (),
}
METRICS = (
    "rtf", "ttfp_s", "ttft_s", "thinker_tokens_per_second", "thinker_itl_s", "talker_frames_per_second",
    "talker_tpot_s", "talker_step_s", "talker_backbone_s", "talker_predictor_s", "talker_rest_s",
    "talker_backbone_p10_s", "talker_predictor_p10_s", "code2wav_device_s",
)  # fmt: skip


@dataclass(frozen=True)
class Served:
    """One request: seconds until its first text, its first audio and its end, and its traces by stage."""

    first_text_s: float
    first_audio_s: float
    end_s: float
    audio_s: float
    traces: dict[str, StageTrace]


def main() -> int:
    options = _options()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        folder.mkdir()
        write_folder(folder, tiny=options.tiny)
        install(Path(scratch) / "plugin")
        config = _config(folder, options)
        record = asyncio.run(_measure(config, Prompts(str(folder), WORDS_IN[options.tiny]), options))
    summary = "\n".join(lines_of(record)) + "\n"
    (options.output_dir / "qwen3-omni.txt").write_text(summary)
    sys.stdout.write(summary)
    return 0


def _config(folder: Path, options: argparse.Namespace) -> EngineConfig:
    fixed = (
        "thinker.sampling.ignore_eos=true",
        f"thinker.sampling.max_tokens={options.text_tokens}",
        f"thinker.sampling.min_tokens={options.text_tokens}",
        f"talker.sampling.max_tokens={options.frames}",
        f"talker.sampling.min_tokens={options.frames}",
        "code2wav.stream=true",
    )
    return load_profile(PROFILES[options.tiny], (*SETTINGS[options.tiny], *fixed, *options.set), model=str(folder))


async def _measure(config: EngineConfig, prompts: Prompts, options: argparse.Namespace) -> Record:
    llm = OmniLLM(config, verbose=options.verbose)
    start_s = time.perf_counter()
    await llm.start()
    loaded = ", ".join(f"{info.name} {info.load_s:.1f} s" for info in llm.stages)
    _say(f"loaded in {time.perf_counter() - start_s:.1f} s: {loaded}")
    variants: list[Variant] = []
    try:
        for clients in options.clients:
            samples = []
            for number in range(-1, options.rounds):
                before = {info.name: info.engagement for info in llm.stages}
                began_s = time.perf_counter()
                served = await asyncio.gather(
                    *(_request(llm, prompts.draw(number + clients * 100, index), index) for index in range(clients))
                )
                seconds = time.perf_counter() - began_s
                _say(f"{clients} clients, round {number}: {seconds:.2f} s")
                if number < 0:
                    continue
                ran = {info.name: since(before[info.name], info.engagement) for info in llm.stages}
                samples.append(_sample(number, seconds, served, ran))
            variants.append(_variant(clients, samples, llm))
            # Keep what is measured, whatever happens next.
            record = _record(variants, options)
            save_record(record, options.output_dir / "qwen3-omni.json")
    finally:
        await llm.close()
    return record


async def _request(llm: OmniLLM, prompt: str, seed: int) -> Served:
    began_s = time.perf_counter()
    first: dict[type, float] = {}
    async for event in llm.generate(GenerateRequest(f"{prompt[:16]} {seed}", prompt, seed=seed)):
        first.setdefault(type(event), time.perf_counter() - began_s)
        num_samples = event.samples.size if isinstance(event, AudioChunk) else 0
        first[AudioChunk, "s"] = first.get((AudioChunk, "s"), 0.0) + num_samples / 24_000
        last = event
    assert isinstance(last, RequestResult)
    if last.error is not None:
        raise last.error
    return Served(
        first.get(TextDelta, float("nan")), first[AudioChunk], time.perf_counter() - began_s, first[AudioChunk, "s"],
        {trace.name: trace for trace in last.stages},
    )  # fmt: skip


def _sample(number: int, seconds: float, served: list[Served], ran: dict[str, dict[str, float]]) -> Sample:
    def median(values: list[float]) -> float:
        return float(statistics.median(values))

    thinkers, talkers = ([one.traces[name] for one in served] for name in ("thinker", "talker"))
    step = median([gap for trace in talkers for gap in _gaps(trace)])
    backbones, predictors = (
        [spent for trace in talkers for spent in getattr(trace, name)[1:]]
        for name in ("backbone_s", "code_predictor_s")
    )
    backbone, predictor = median(backbones), median(predictors)
    metrics = {
        "rtf": median([one.end_s / one.audio_s for one in served]),
        "ttfp_s": median([one.first_audio_s for one in served]),
        "ttft_s": median([one.first_text_s for one in served]),
        "thinker_tokens_per_second": _rate(thinkers),
        "talker_frames_per_second": _rate(talkers),
        "thinker_itl_s": median([gap for trace in thinkers for gap in _gaps(trace)]),
        "talker_tpot_s": median([(each.latency_s - each.ttft_s) / (each.num_output_tokens - 1) for each in talkers]),
        "talker_step_s": step,
        "talker_backbone_s": backbone,
        "talker_predictor_s": predictor,
        "talker_rest_s": step - backbone - predictor,
        # Only steps during which no other stage uses the device.
        "talker_backbone_p10_s": statistics.quantiles(backbones, n=10)[0],
        "talker_predictor_p10_s": statistics.quantiles(predictors, n=10)[0],
        "code2wav_device_s": median([one.traces["code2wav"].vocoder_s for one in served]),
    }
    work = {
        "input_tokens": float(sum(trace.num_input_tokens for trace in thinkers)),
        "output_tokens": float(sum(trace.num_output_tokens for trace in thinkers)),
        "audio_s": sum(one.audio_s for one in served),
    }
    return Sample(block=number, position=0, e2e_s=seconds, metrics=metrics, work=work, engagement=ran)


def _gaps(trace: StageTrace) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(trace.token_times_s)]


def _rate(traces: list[StageTrace]) -> float:
    """Tokens per second of a stage, from its first request's arrival to its last one's end; all arrive together."""
    return sum(trace.num_output_tokens for trace in traces) / max(trace.latency_s for trace in traces)


def _variant(clients: int, samples: list[Sample], llm: OmniLLM) -> Variant:
    variant = Variant(
        name=f"clients={clients}", settings={"clients": clients},
        effective={info.name: {**info.effective, **info.settings} for info in llm.stages}, samples=tuple(samples),
    )  # fmt: skip
    summaries = {metric: summarise(variant, metric) for metric in ("e2e_s", *METRICS)}
    return msgspec.structs.replace(variant, summary={metric: item for metric, item in summaries.items() if item})


def _record(variants: list[Variant], options: argparse.Namespace) -> Record:
    workload = {
        "model": "Qwen3-Omni, " + ("tiny" if options.tiny else "30B-A3B") + ", random weights",
        "text_tokens": options.text_tokens, "frames": options.frames, "settings": [*options.set],
    }  # fmt: skip
    return Record(
        created=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        command=("python", *sys.argv),
        environment=kit_environment(),
        workload={**workload, "fingerprint": workload_fingerprint(workload)},
        variants=tuple(variants),
    )


def lines_of(record: Record) -> list[str]:
    """Format the summary: one line per number of clients, with medians over rounds."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    lines = [f"{device}, torch {torch.__version__}, {record.workload['model']}"]
    for variant in record.variants:
        medians = {metric: item.median for metric, item in variant.summary.items()}
        lines.append(f"{variant.name}   " + "   ".join(f"{name} {value:.5g}" for name, value in medians.items()))
        for stage, counters in variant.samples[-1].engagement.items():
            lines.append(
                f"  {stage}, last round: " + ", ".join(f"{name} {value:g}" for name, value in counters.items())
            )
    return lines


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output-dir", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true", help="a small model, to try the script")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 8, 32])
    parser.add_argument("--rounds", type=int, default=3, help="after one that warms up")
    parser.add_argument("--text-tokens", type=int, default=128)
    parser.add_argument("--frames", type=int, default=250, help="the last ends the speech")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as of `omni generate`")
    parser.add_argument("-v", "--verbose", action="store_true")
    options = parser.parse_args()
    options.output_dir.mkdir(parents=True, exist_ok=True)
    return options


if __name__ == "__main__":
    sys.exit(main())
