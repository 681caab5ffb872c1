"""CUDA graphs and output copies of an AR stage on a GPU: Qwen2.5-Omni-7B's thinker at its real size, dummy weights.

    PYTHONPATH=. python benchmarks/gpu/ar_modes.py -o DIR [--blocks 10] [--compilation-mode 0]

Needs vLLM for CUDA and what omni-cli needs; no network, no checkpoint. The project's own stage (`ThinkerStage`, with
its worker and runner) runs in this process, once per `cudagraph_mode`, interleaved: 8 concurrent requests, 128 tokens
in, 64 out, greedy. All but the last side want their hidden states. Modes of one stage, `output_copy` sync and async,
are interleaved on the same engine.

DIR gets one `omni.bench/1` record, `ar.json`, and `ar-summary.txt`. `--tiny` runs on any device that vLLM supports, on
a CPU without CUDA graphs, and is meaningless for speed.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from omni_cli.core.compat.libraries import prepare_libraries  # isort: skip

prepare_libraries()

import msgspec
import numpy as np
import torch
from environment import kit_command, kit_environment
from omni_checkpoint import SEVEN_B, TOKENIZER_SIZE
from transformers import Qwen2_5OmniConfig
from vllm.platforms import current_platform

from omni_cli.backends.execution.counters import since
from omni_cli.checkpoints.tiny import quiet_transformers
from omni_cli.checkpoints.tiny_qwen import OmniSizes, qwen2_5_omni, write_bpe
from omni_cli.checkpoints.tokenizer import train_tokenizer
from omni_cli.config.schema import ARStageConfig
from omni_cli.measure.bench.prompts import Prompts
from omni_cli.models.qwen2_5_omni.family import FAMILY
from omni_cli.models.qwen2_5_omni.stages import ThinkerStage
from omni_cli.records.record import Record, Sample, Variant, workload_fingerprint
from omni_cli.records.record_file import save_record
from omni_cli.requests.contents import StageIO, TextOptions
from omni_cli.requests.outputs import GenerateRequest
from omni_cli.stage.messages import RequestDone
from omni_cli.stage.payloads import decode_additional_information
from omni_cli.stage.protocol import StageSpec
from omni_cli.stats.blocks import summarise
from omni_cli.stats.compare import compare_variants

# Device memory for each of the two engines; vLLM requires this much to be free.
MEMORY_SHARE = 0.4
METRICS = ("e2e_s", "tpot_s", "output_tokens_per_second")


@dataclass(frozen=True)
class Side:
    cudagraph_mode: str
    output_copy: str
    wants_hidden_states: bool = True

    @property
    def name(self) -> str:
        wanted = "" if self.wants_hidden_states else ",hidden states not wanted"
        return f"cudagraph_mode={self.cudagraph_mode},output_copy={self.output_copy}{wanted}"


SIDES = (
    Side("none", "async"),
    Side("full", "async"),
    Side("full", "sync"),
    Side("full", "async", wants_hidden_states=False),
)
ON_CPU = (Side("none", "async"), Side("none", "async", wants_hidden_states=False))


class DummyThinker(ThinkerStage):
    """The real stage, except for its weights."""

    compilation_mode: int | None = None

    def engine_args(self) -> dict[str, Any]:
        given = super().engine_args()
        if self.compilation_mode is not None and "compilation_config" in given:
            given["compilation_config"]["mode"] = self.compilation_mode
        return {**given, "load_format": "dummy"}


@dataclass
class Run:
    """One batch of requests. `tokens` and `rows` (hidden states, float32) are of its first request."""

    e2e_s: float
    metrics: dict[str, float]
    work: dict[str, float]
    digest: str
    tokens: list[int]
    rows: np.ndarray | None


def main() -> int:
    options = _options()
    sides = ON_CPU if current_platform.is_cpu() else SIDES
    DummyThinker.compilation_mode = options.compilation_mode
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder), OmniSizes() if options.tiny else SEVEN_B)
        stages, errors = _load(sides, folder, options)
        prompts = Prompts(folder, options.input_len)
        try:
            record = _measure([side for side in sides if side.cudagraph_mode in stages], stages, prompts, options)
        finally:
            for stage in stages.values():
                stage.close()
    variants = [*record.variants, *(Variant(name=f"cudagraph_mode={m}", error=text) for m, text in errors.items())]
    record = msgspec.structs.replace(record, variants=tuple(variants))
    save_record(record, options.output_dir / "ar.json")
    summary = "\n".join(_lines(record)) + "\n"
    (options.output_dir / "ar-summary.txt").write_text(summary)
    sys.stdout.write(summary)
    return 0


def write_checkpoint(folder: Path, sizes: OmniSizes) -> None:
    """Write what vLLM reads of a Qwen2.5-Omni except the weights; a small tokenizer, in the real vocabulary."""
    tokenizer = train_tokenizer(min(TOKENIZER_SIZE, sizes.vocab_size), sizes.max_position_embeddings)
    checkpoint = qwen2_5_omni(sizes, tokenizer)
    with quiet_transformers():
        config = Qwen2_5OmniConfig(**checkpoint.models[""].config, dtype="float32")
        config.architectures = [FAMILY.architectures[0]]
        config.save_pretrained(folder)
        checkpoint.processor.save_pretrained(folder)
    write_bpe(tokenizer, folder, seed=0)


def _load(sides: tuple[Side, ...], model: str, options: argparse.Namespace) -> tuple[dict[str, DummyThinker], dict]:
    """Load one stage per mode; return them, and the errors of the others."""
    stages, errors = {}, {}
    for mode in dict.fromkeys(side.cudagraph_mode for side in sides):
        start = time.perf_counter()
        try:
            stages[mode] = DummyThinker(_spec(mode, model, options), emit=lambda _report: None)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what this mode has to show
            traceback.print_exc()
            errors[mode] = f"{type(error).__name__}: {error}"
            continue
        _say(f"cudagraph_mode={mode} loaded in {time.perf_counter() - start:.1f} s: {stages[mode].execution_counters}")
    return stages, errors


def _spec(mode: str, model: str, options: argparse.Namespace) -> StageSpec:
    length = {"temperature": 0.0, "max_tokens": options.output_len, "min_tokens": options.output_len}
    stage = ARStageConfig.create(
        name="thinker", max_model_len=2048, max_num_seqs=options.num_requests, kv_cache_memory_bytes=options.kv_cache,
        gpu_memory_utilization=MEMORY_SHARE, enable_prefix_caching=False, cudagraph_mode=mode,
        sampling={**length, "ignore_eos": True},
    )  # fmt: skip
    dtype = "float32" if options.tiny and current_platform.is_cpu() else "bfloat16"
    return StageSpec(stage, model, FAMILY, FAMILY.architectures[0], dtype, seed=0, trust_remote_code=False)


def _measure(sides: list[Side], stages: dict[str, DummyThinker], prompts: Prompts, options: argparse.Namespace):
    samples: dict[Side, list[Sample]] = {side: [] for side in sides}
    firsts: dict[Side, Run] = {}
    for block in range(-1, options.blocks):
        for position, side in enumerate([*sides, *reversed(sides)]):
            stage = stages[side.cudagraph_mode]
            stage.engine.collective_rpc("use_output_copy", args=(side.output_copy,))
            # Fills the buffers of the copies that have just been set up.
            _run(stage, side, prompts, options, block=-2, requests=1)
            before = stage.execution_counters
            run = _run(stage, side, prompts, options, block=max(block, 0), requests=options.num_requests)
            firsts.setdefault(side, run)
            if block >= 0:
                samples[side].append(
                    Sample(
                        block=block, position=position, e2e_s=run.e2e_s, metrics=run.metrics, work=run.work,
                        execution_counters={"thinker": since(before, stage.execution_counters)},
                    )
                )  # fmt: skip
    variants = [_variant(side, stages[side.cudagraph_mode], samples[side], firsts[side]) for side in sides]
    return _record(variants, [_outputs(sides[0], side, firsts) for side in sides[1:]], options)


def _run(
    stage: DummyThinker, side: Side, prompts: Prompts, options: argparse.Namespace, *, block: int, requests: int
) -> Run:
    """Run `requests` concurrently through the stage, from the first one in to the last one out."""
    texts = [prompts.draw(block, index) for index in range(requests)]
    start = time.perf_counter()
    for index, text in enumerate(texts):
        stage.add(
            GenerateRequest(
                str(index),
                prompt=text,
                text=TextOptions(raw=True),
                stage=StageIO(wants_output=side.wants_hidden_states),
            )
        )
    done: dict[str, RequestDone] = {}
    while stage.has_work():
        for report in stage.step():
            if isinstance(report, RequestDone):
                done[report.request_id] = report
    seconds = time.perf_counter() - start
    ends = [done[str(index)] for index in range(requests)]
    tokens = [end.trace["output_token_ids"] for end in ends]
    tpot = [(e.trace["latency_s"] - e.trace["ttft_s"]) / (e.trace["num_output_tokens"] - 1) for e in ends]
    count = sum(len(ids) for ids in tokens)
    rows = None
    if side.wants_hidden_states:
        rows = decode_additional_information(ends[0].stage_output)["hidden_states"].float().numpy()
    return Run(
        seconds,
        {"tpot_s": float(np.median(tpot)), "output_tokens_per_second": count / seconds},
        {"input_tokens": float(sum(end.trace["num_input_tokens"] for end in ends)), "output_tokens": float(count)},
        "sha256:" + hashlib.sha256(repr(tokens).encode()).hexdigest(),
        tokens[0],
        rows,
    )


def _variant(side: Side, stage: DummyThinker, samples: list[Sample], first: Run) -> Variant:
    variant = Variant(
        name=side.name, settings=dataclasses.asdict(side),
        effective={**stage.effective, **stage.settings, "output_copy": side.output_copy},
        samples=tuple(samples), output_sha256=first.digest,
    )  # fmt: skip
    summaries = {metric: summarise(variant, metric) for metric in METRICS}
    return msgspec.structs.replace(variant, summary={metric: item for metric, item in summaries.items() if item})


def _outputs(a: Side, b: Side, firsts: dict[Side, Run]) -> dict[str, Any]:
    """Tokens of all requests by hash; the first request's hidden states by their largest difference."""
    first, other = firsts[a], firsts[b]
    difference = None
    if first.rows is not None and other.rows is not None and first.tokens == other.tokens:
        difference = float(np.abs(first.rows - other.rows).max())
    outputs = {"identical": first.digest == other.digest, "max_abs_diff": difference}
    return {"metric": "e2e_s", "a": a.name, "b": b.name, "outputs": outputs}


def _record(variants: list[Variant], outputs: list[dict[str, Any]], options: argparse.Namespace) -> Record:
    workload = {
        "model": "Qwen2.5-Omni's thinker, " + ("tiny" if options.tiny else "7B") + ", dummy weights",
        "num_requests": options.num_requests, "input_len": options.input_len, "output_len": options.output_len,
        "compilation_mode": options.compilation_mode,
    }  # fmt: skip
    return Record(
        created=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        command=kit_command(),
        environment=kit_environment(),
        workload={**workload, "fingerprint": workload_fingerprint(workload)},
        variants=tuple(variants),
        comparisons=tuple(outputs),
    )


def _lines(record: Record) -> list[str]:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    lines = [f"{device}, torch {torch.__version__}, {record.workload['model']}"]
    for variant in record.variants:
        if variant.error is not None:
            lines.append(f"  {variant.name} did not run: {variant.error}")
            continue
        medians = {metric: item.median for metric, item in variant.summary.items()}
        lines.append(f"  {variant.name}   " + "   ".join(f"{metric} {value:.6g}" for metric, value in medians.items()))
        counters = variant.samples[-1].execution_counters["thinker"] if variant.samples else {}
        lines.append("    last run: " + ", ".join(f"{name} {value:g}" for name, value in counters.items()))
    runs = [variant for variant in record.variants if variant.samples]
    for a, b in [(runs[0], other) for other in runs[1:]] + ([(runs[2], runs[1])] if len(runs) > 3 else []):
        for item in (each.result for each in compare_variants(a, b, same_record=True, metrics=["e2e_s"])):
            interval = "" if item.ci95 is None else f" [{item.ci95[0]:.4f}, {item.ci95[1]:.4f}]"
            lines.append(f"  {b.name} to {a.name}: {item.ratio:.4f}{interval} {item.verdict}")
    lines += [f"  outputs of {entry['b']} to {entry['a']}: {entry['outputs']}" for entry in record.comparisons]
    return lines


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output-dir", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true", help="a small model, to try the script")
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--num-requests", type=int, default=8)
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--kv-cache", type=int, default=2 << 30, metavar="BYTES")
    parser.add_argument("--compilation-mode", type=int, choices=range(4), help="vLLM's; 0: no torch.compile")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
