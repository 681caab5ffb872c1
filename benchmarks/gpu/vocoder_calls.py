"""One call of token2wav's packed vocoder on a GPU, with CUDA graphs and without, beside transformers' own.

    PYTHONPATH=. python benchmarks/gpu/vocoder_calls.py -o DIR [--precision tf32] [--calls 48x1 400x1 400x9]

Sizes of Qwen2.5-Omni-7B and random weights; no vLLM, no checkpoint. A call is frames x sequences, from spectrograms on
the device to samples on the host; transformers vocodes its sequences one after another. Sides alternate; medians of the
calls' wall time. DIR gets `vocoder-calls.json` and the printed summary. `--sizes tiny` is meaningless for speed.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from token2wav_batching import SIZES, make_model, vocoder_flops  # isort: skip

import torch
from environment import kit_command, kit_environment
from models import twin

from omni_cli.backends.execution.modes import ExecutionMode, make_execution_mode
from omni_cli.backends.execution.precision import arithmetic, use_precision
from omni_cli.models.qwen2_5_omni.token2wav.cuda.platform import CudaPlatform
from omni_cli.models.qwen2_5_omni.token2wav.platform import Vocoder, VocoderInput

REPEATS = 20


def main() -> int:
    options = _options()
    device = torch.device("cuda")
    model = make_model(options.sizes, device)
    vocoders = [twin(model).code2wav_bigvgan_model for _ in range(2)]
    sides = {
        "transformers": Vocoder(model.code2wav_bigvgan_model),
        "packed": CudaPlatform().make_vocoder(vocoders[0]),
        "graphs": CudaPlatform().make_vocoder(vocoders[1]),
    }
    graphs: list[ExecutionMode] = []

    def prepare(*arguments: Any, **keys: Any) -> ExecutionMode:
        graphs.append(make_execution_mode(*arguments, mode="cudagraph", stage="token2wav", device="cuda", **keys))
        return graphs[0]

    sides["graphs"].use_graphs(prepare)
    torch.backends.cudnn.deterministic = True
    use_precision(options.precision, stage="token2wav", device="cuda")
    rows, lines = [], [f"{torch.cuda.get_device_name()}, {options.precision}, ms a call: {', '.join(sides)}"]
    with torch.inference_mode(), arithmetic(options.precision, "cuda"):
        begin = time.perf_counter()
        sides["graphs"].capture_ahead()
        counters = graphs[0].counters
        took = f"{counters.graphs_captured} graphs captured in {time.perf_counter() - begin:.2f} s"
        lines.append(f"{took}, pool of {counters.graph_pool_bytes >> 20} MiB")
        for call in options.calls:
            frames, count = map(int, call.split("x"))
            mels = [torch.randn(1, frames, 80, device=device) for _ in range(count)]
            heard = [VocoderInput(str(index), mel, 0, frames * 240) for index, mel in enumerate(mels)]
            samples = {name: torch.cat([each for _, each in side.waveforms(heard)]) for name, side in sides.items()}
            differences = {name: (samples[name] - samples["transformers"]).abs().max().item() for name in samples}
            seconds = timed({name: functools.partial(_run, side, heard) for name, side in sides.items()})
            teraflops = vocoder_flops(model, frames * count) / 1e12
            rows.append({"call": call, "seconds": seconds, "max_abs_difference": differences, "teraflop": teraflops})
            times = "  ".join(f"{1e3 * each:7.2f}" for each in seconds.values())
            rate = teraflops / seconds["graphs"]
            lines.append(f"{call:>8} {times}   {rate:5.0f} TFLOP/s with graphs, {differences['graphs']:.1e} away")
    summary = "\n".join(lines) + "\n"
    record = {"command": kit_command(), "environment": kit_environment(), "precision": options.precision, "calls": rows}
    (options.output_dir / "vocoder-calls.json").write_text(json.dumps(record, indent=1) + "\n")
    (options.output_dir / "vocoder-calls.txt").write_text(summary)
    sys.stdout.write(summary)
    return 0


def _run(side: Vocoder, heard: list[VocoderInput]) -> None:
    for _ in side.waveforms(heard):
        pass


def timed(sides: dict[str, Callable[[], None]]) -> dict[str, float]:
    """Median seconds of each side; samples on the host end a call."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(REPEATS):
        for name, run in sides.items():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            run()
            torch.cuda.synchronize()
            seconds[name].append(time.perf_counter() - begin)
    return {name: statistics.median(each) for name, each in seconds.items()}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output-dir", type=Path, required=True)
    parser.add_argument("--precision", choices=("float32", "tf32"), default="tf32")
    parser.add_argument("--sizes", choices=tuple(SIZES), default="7b")
    parser.add_argument("--calls", nargs="+", default=["48x1", "144x1", "400x1", "72x6", "400x9"])
    options = parser.parse_args()
    options.output_dir.mkdir(parents=True, exist_ok=True)
    return options


if __name__ == "__main__":
    raise SystemExit(main())
