"""An omni model's chain on one GPU, whole and streamed: total, completion, first audio, and the stages' parts.

    PYTHONPATH=. python benchmarks/gpu/chain.py qwen3-omni|qwen2.5-omni|qwen2.5-omni-3b -o DIR [--clients 1 4 8 32]
        [--rounds 3] [--codes 250] [--stream both] [--model FOLDER] [--set KEY=VALUE]...

A bundled profile at its real sizes, random bfloat16 weights, run by `OmniLLM`: `qwen3-omni-30b-a3b` with weights drawn
on the device, `qwen2.5-omni-7b` or `-3b` with the folder that `omni_checkpoint.py` has written (`--model`). A request
has 64 tokens of prompt, 128 of text and a fixed number of codes (Qwen3-Omni: frames, the last of which ends the
speech). All requests of a round enter at once; one round warms up. `--stream both` alternates whole and streamed
rounds.

RTF is a request's time over that of its audio. A Qwen3-Omni talker's step is split into its forward pass (`backbone`)
and its code predictor, both by the device's clock, and the rest, which is the host's and the sampler's. Medians over
steps, but `talker_tpot_s`, which is the mean.

Of a streamed request of Qwen2.5-Omni, seconds since its arrival: `first_token_s` of the thinker, `first_code_s` of the
talker, and for each chunk `chunk_N_codes_s`, `_begun_s` and `_made_s`, when its codes had reached token2wav, its first
step had been launched and its audio was there. `playback_gap_s` is the longest silence before a chunk.

On a GPU, the joules of the rounds of a way of sending audio and per minute of sound, once these have two seconds in all
(`sound_energy.py`).

DIR gets one `omni.bench/1` record, named after the model, with a variant per number of clients and way of sending
audio, and the printed summary. `--tiny` runs a small model on any device that vLLM supports, and is meaningless for
speed.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from omni_cli.core.compat.libraries import prepare_libraries  # isort: skip

prepare_libraries()

import msgspec
import torch
from environment import kit_command, kit_environment
from qwen3_folder import write_folder
from random_weights import install
from sound_energy import RoundEnergy, RoundMeter

from omni_cli.backends.execution.counters import since
from omni_cli.checkpoints.resolve import resolve_model
from omni_cli.config.loader import load_profile
from omni_cli.config.schema import EngineConfig
from omni_cli.engine.omni_llm import OmniLLM
from omni_cli.measure.bench.prompts import Prompts
from omni_cli.records.record import Record, Sample, Variant, workload_fingerprint
from omni_cli.records.record_file import save_record
from omni_cli.requests.contents import SpeechOptions, TextOptions
from omni_cli.requests.events import AudioChunk, TextDelta
from omni_cli.requests.outputs import AudioOutput, GenerateRequest, RequestResult, StageTrace
from omni_cli.stats.blocks import summarise


@dataclass(frozen=True)
class Model:
    """A model's profile (small, real), and what its workload needs; keys of settings at its real size."""

    profiles: tuple[str, str]
    name: str
    codec: str
    codes: int
    settings: tuple[str, ...] = ()
    is_raw: bool = False
    """Prompts have all 64 tokens, without the chat template."""


MODELS = {
    "qwen3-omni": Model(
        ("tiny-qwen3-omni", "qwen3-omni-30b-a3b"), "Qwen3-Omni, 30B-A3B", "code2wav", codes=250,
        # Sizes given instead of shares, because measuring the room for a KV cache would encode the longest video.
        settings=(
            "thinker.max_model_len=4096",
            "talker.max_model_len=4096",
            "thinker.kv_cache_memory_bytes=8589934592",
            "talker.kv_cache_memory_bytes=4294967296",
        ),
    ),
    "qwen2.5-omni": Model(("tiny-omni", "qwen2.5-omni-7b"), "Qwen2.5-Omni, 7B", "token2wav", codes=200, is_raw=True),
    "qwen2.5-omni-3b": Model(("tiny-omni", "qwen2.5-omni-3b"), "Qwen2.5-Omni, 3B", "token2wav", codes=200, is_raw=True),
}  # fmt: skip
SAMPLE_RATE = 24_000
STREAMS = {"profile": (None,), "off": (False,), "on": (True,), "both": (False, True)}
METRICS = (
    "median_completion_s", "rtf", "ttfp_s", "ttft_s", "thinker_s", "talker_s", "codec_s", "codec_device_s",
    "num_chunks", "thinker_tokens_per_second", "thinker_itl_s", "talker_frames_per_second", "talker_tpot_s",
    "talker_step_s", "talker_backbone_s", "talker_predictor_s", "talker_rest_s", "talker_backbone_p10_s",
    "talker_predictor_p10_s",
)  # fmt: skip


@dataclass(frozen=True)
class Served:
    """One request: seconds until its first text, its first audio and its end, of its audio, and of the longest silence
    between two chunks if they are played as they come; its traces by stage."""

    first_text_s: float
    first_audio_s: float
    end_s: float
    audio_s: float
    gap_s: float
    traces: dict[str, StageTrace]


def main() -> int:
    options = _options()
    model = MODELS[options.chain]
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.model
        if folder is None and model.codec == "code2wav":
            folder = str(Path(scratch) / "model")
            Path(folder).mkdir()
            write_folder(Path(folder), tiny=options.tiny)
            install(Path(scratch) / "plugin")
        config = _config(model, folder, options)
        prompts = Prompts(resolve_model(config.model), _words_in(model, tiny=options.tiny))
        record = asyncio.run(_measure(model, config, prompts, options))
    summary = "\n".join(lines_of(record)) + "\n"
    (options.output_dir / f"{options.chain}.txt").write_text(summary)
    sys.stdout.write(summary)
    return 0


def _words_in(model: Model, *, tiny: bool) -> int:
    if model.is_raw:
        return 64
    return 8 if tiny else 56  # the chat template adds eight tokens


def _config(model: Model, folder: str | None, options: argparse.Namespace) -> EngineConfig:
    codes = options.codes or model.codes
    fixed = (
        "thinker.sampling.ignore_eos=true",
        f"thinker.sampling.max_tokens={options.text_tokens}",
        f"thinker.sampling.min_tokens={options.text_tokens}",
        f"talker.sampling.max_tokens={codes}",
        f"talker.sampling.min_tokens={codes}",
    )
    sizes = () if options.tiny else model.settings
    return load_profile(model.profiles[not options.tiny], (*sizes, *fixed, *options.set), model=folder)


async def _measure(model: Model, config: EngineConfig, prompts: Prompts, options: argparse.Namespace) -> Record:
    llm = OmniLLM(config, verbose=options.verbose)
    start_s = time.perf_counter()
    await llm.start()
    loaded = ", ".join(f"{info.name} {info.load_s:.1f} s" for info in llm.stages)
    _say(f"loaded in {time.perf_counter() - start_s:.1f} s: {loaded}")
    variants: list[Variant] = []
    record = _record(model, variants, options)
    meter = RoundMeter()
    try:
        for clients in options.clients:
            energy = {streams: RoundEnergy() for streams in STREAMS[options.stream]}
            samples: dict[bool | None, list[Sample]] = {streams: [] for streams in STREAMS[options.stream]}
            for number, streams in itertools.product(range(-1, options.rounds), samples):
                if number > 0 and time.perf_counter() - start_s > options.time_budget:
                    continue
                before = {info.name: info.execution_counters for info in llm.stages}
                await meter.begin()
                began_s = time.perf_counter()
                served = await asyncio.gather(
                    *(
                        _request(model, llm, prompts.draw(number + clients * 100, index), index, streams)
                        for index in range(clients)
                    )
                )
                seconds = time.perf_counter() - began_s
                used = await meter.end()
                latencies = (
                    f"{name} {_median(one.traces[name].latency_s for one in served):.2f} s" for name in served[0].traces
                )
                said = f"{clients} clients, {_way(streams)}, round {number}: {seconds:.2f} s, {', '.join(latencies)}"
                _say(said)
                if number >= 0:
                    ran = {info.name: since(before[info.name], info.execution_counters) for info in llm.stages}
                    samples[streams].append(_sample(model, number, seconds, served, ran))
                    energy[streams].add(used, samples[streams][-1].work)
            for streams, done in samples.items():
                last = done.pop()
                done.append(msgspec.structs.replace(last, metrics={**last.metrics, **energy[streams].figures()}))
                made = _variant(clients, streams, done, llm)
                variants.append(msgspec.structs.replace(made, energy=meter.counters))
            # Keep what is measured, whatever happens next.
            record = _record(model, variants, options)
            save_record(record, options.output_dir / f"{options.chain}.json")
    finally:
        await llm.close()
    return record


def _way(streams: bool | None) -> str:
    return {None: "as in the profile", False: "whole", True: "streamed"}[streams]


async def _request(model: Model, llm: OmniLLM, prompt: str, seed: int, streams: bool | None) -> Served:
    began_s = time.perf_counter()
    first: dict[type, float] = {}
    num_samples, played_until_s, gap_s = 0, math.inf, 0.0
    request = GenerateRequest(
        f"{prompt[:16]} {seed}",
        prompt,
        text=TextOptions(raw=model.is_raw),
        speech=SpeechOptions(stream_audio=streams),
        seed=seed,
        cache_salt=f"{prompt} {seed} {streams}",
    )
    async for event in llm.generate(request):
        now_s = time.perf_counter() - began_s
        first.setdefault(type(event), now_s)
        if isinstance(event, AudioChunk):
            num_samples += event.samples.size
            gap_s = max(gap_s, now_s - played_until_s)
            started_s = now_s if math.isinf(played_until_s) else max(now_s, played_until_s)
            played_until_s = started_s + event.samples.size / SAMPLE_RATE
        last = event
    assert isinstance(last, RequestResult)
    if last.error is not None:
        raise last.error
    end_s = time.perf_counter() - began_s
    num_samples = num_samples or sum(made.samples.size for made in last.outputs if isinstance(made, AudioOutput))
    return Served(
        first.get(TextDelta, float("nan")), first.get(AudioChunk, end_s), end_s, num_samples / SAMPLE_RATE, gap_s,
        {trace.name: trace for trace in last.stages},
    )  # fmt: skip


def _sample(
    model: Model, number: int, seconds: float, served: list[Served], ran: dict[str, dict[str, float]]
) -> Sample:
    thinkers, talkers, codecs = ([one.traces[name] for one in served] for name in ("thinker", "talker", model.codec))
    step = _median(gap for trace in talkers for gap in _gaps(trace))
    metrics = {
        "median_completion_s": _median(one.end_s for one in served),
        "rtf": _median(one.end_s / one.audio_s for one in served),
        "ttfp_s": _median(one.first_audio_s for one in served),
        "ttft_s": _median(one.first_text_s for one in served),
        "thinker_s": _median(trace.latency_s for trace in thinkers),
        "talker_s": _median(trace.latency_s for trace in talkers),
        "codec_s": _median(trace.latency_s for trace in codecs),
        "codec_device_s": _median(trace.vocoder_s + sum(trace.denoise_step_s or ()) for trace in codecs),
        "num_chunks": _median(trace.num_chunks or 1 for trace in codecs),
        "thinker_tokens_per_second": _rate(thinkers),
        "talker_frames_per_second": _rate(talkers),
        "thinker_itl_s": _median(gap for trace in thinkers for gap in _gaps(trace)),
        "talker_tpot_s": _median((each.latency_s - each.ttft_s) / (each.num_output_tokens - 1) for each in talkers),
        "talker_step_s": step,
        **(_talker_parts(step, talkers) if talkers[0].code_predictor_s else {}),
        **(_way_to_audio(thinkers, talkers, codecs) if codecs[0].chunk_times_s else {}),
        **({"playback_gap_s": max(one.gap_s for one in served)} if codecs[0].num_chunks else {}),
    }
    work = {
        "input_tokens": float(sum(trace.num_input_tokens for trace in thinkers)),
        "output_tokens": float(sum(trace.num_output_tokens for trace in thinkers)),
        "audio_s": sum(one.audio_s for one in served),
    }
    return Sample(block=number, position=0, e2e_s=seconds, metrics=metrics, work=work, execution_counters=ran)


def _talker_parts(step: float, talkers: list[StageTrace]) -> dict[str, float]:
    backbones, predictors = (
        [spent for trace in talkers for spent in getattr(trace, name)[1:]]
        for name in ("backbone_s", "code_predictor_s")
    )
    backbone, predictor = _median(backbones), _median(predictors)
    return {
        "talker_backbone_s": backbone,
        "talker_predictor_s": predictor,
        "talker_rest_s": step - backbone - predictor,
        # Only steps during which no other stage uses the device.
        "talker_backbone_p10_s": statistics.quantiles(backbones, n=10)[0],
        "talker_predictor_p10_s": statistics.quantiles(predictors, n=10)[0],
    }


def _way_to_audio(thinkers: list[StageTrace], talkers: list[StageTrace], codecs: list[StageTrace]) -> dict[str, float]:
    """Medians over requests, in seconds since the request's arrival, of what precedes each chunk."""
    moments = {
        "first_token_s": _median(trace.began_s + trace.token_times_s[0] for trace in thinkers),
        "first_code_s": _median(trace.began_s + trace.token_times_s[0] for trace in talkers),
    }
    for number in range(min(len(trace.chunk_times_s) for trace in codecs)):
        for place, name in enumerate(("codes", "begun", "made")):
            times = (trace.began_s + trace.chunk_times_s[number][place] for trace in codecs)
            moments[f"chunk_{number + 1}_{name}_s"] = _median(times)
    return moments


def _median(values: Iterable[float]) -> float:
    return float(statistics.median(values))


def _gaps(trace: StageTrace) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(trace.token_times_s)]


def _rate(traces: list[StageTrace]) -> float:
    """Tokens per second of a stage, from its first request's arrival to its last one's end; all arrive together."""
    return sum(trace.num_output_tokens for trace in traces) / max(trace.latency_s for trace in traces)


def _variant(clients: int, streams: bool | None, samples: list[Sample], llm: OmniLLM) -> Variant:
    way = {} if streams is None else {"stream": streams}
    settings = {"clients": clients, **way}
    variant = Variant(
        name=",".join(f"{key}={value}" for key, value in settings.items()), settings=settings,
        effective={info.name: {**info.effective, **info.settings} for info in llm.stages}, samples=tuple(samples),
    )  # fmt: skip
    measured = dict.fromkeys(("e2e_s", *METRICS, *(name for sample in samples for name in sample.metrics)))
    summaries = {metric: summarise(variant, metric) for metric in measured}
    return msgspec.structs.replace(variant, summary={metric: item for metric, item in summaries.items() if item})


def _record(model: Model, variants: list[Variant], options: argparse.Namespace) -> Record:
    workload = {
        "model": model.name + (", tiny" if options.tiny else "") + ", random weights",
        "text_tokens": options.text_tokens, "codes": options.codes or model.codes, "settings": [*options.set],
    }  # fmt: skip
    return Record(
        created=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        command=kit_command(),
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
        for stage, counters in variant.samples[-1].execution_counters.items():
            lines.append(
                f"  {stage}, last round: " + ", ".join(f"{name} {value:g}" for name, value in counters.items())
            )
    return lines


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("chain", choices=MODELS)
    parser.add_argument("-o", "--output-dir", type=Path, required=True)
    parser.add_argument("--model", metavar="FOLDER", help="a folder with weights, instead of drawing them")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try the script")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 8, 32])
    parser.add_argument("--rounds", type=int, default=3, help="after one that warms up")
    parser.add_argument("--text-tokens", type=int, default=128)
    parser.add_argument("--codes", type=int, help="default: 250 frames, the last ends the speech; Qwen2.5-Omni: 200")
    parser.add_argument("--stream", choices=STREAMS, default="profile")
    parser.add_argument("--time-budget", type=float, default=math.inf, metavar="SECONDS", help="then one round each")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as of `omni generate`")
    parser.add_argument("-v", "--verbose", action="store_true")
    options = parser.parse_args()
    options.output_dir.mkdir(parents=True, exist_ok=True)
    return options


if __name__ == "__main__":
    sys.exit(main())
