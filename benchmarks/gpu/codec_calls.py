"""One frame of Qwen3-Omni's code predictor and one piece of its code2wav on a GPU: eager, from graphs, kernels.

    PYTHONPATH=. python benchmarks/gpu/codec_calls.py -o DIR [--batches 2 8 32]

Sizes of Qwen3-Omni-30B-A3B, random bfloat16 weights, medians by events on the device; no vLLM, no checkpoint. DIR gets
`codec-calls.json`, and `codec-calls.txt` with the kernels of a replayed frame. `--tiny` also runs on a CPU, where it
measures eager calls alone and is meaningless for speed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from omni_cli.core.compat.torchvision import ensure_torchvision_importable  # isort: skip

ensure_torchvision_importable()

import torch
from environment import kit_command, kit_environment
from qwen3_folder import RELEASED
from random_weights import fill
from transformers import Qwen3OmniMoeCode2Wav, Qwen3OmniMoeConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeTalkerCodePredictorModelForConditionalGeneration as PredictorModel,
)

from omni_cli.backends.execution.cuda_graphs import CudaGraphBackend
from omni_cli.backends.execution.ranges import clock_for
from omni_cli.checkpoints.tiny_qwen3 import Qwen3OmniSizes, qwen3_omni
from omni_cli.core.compat import replace_attributes
from omni_cli.models.codec.code_predictor import (
    CodeNetwork,
    CodePredictor,
    CodeSampling,
    stack_projections,
)
from omni_cli.models.codec.frame_kernel import FrameKernel
from omni_cli.models.codec.streaming import DecoderState, Piece, StreamingCodecDecoder

REPEATS = 20
FRAMES = 12


def main() -> int:
    options = _options()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sizes = Qwen3OmniSizes()
    tokenizer = qwen3_omni(sizes).processor.tokenizer
    checkpoint = qwen3_omni(sizes if options.tiny else RELEASED, tokenizer)
    config = Qwen3OmniMoeConfig(**checkpoint.models[""].config, dtype="float32")
    with torch.inference_mode():
        times = {
            "code predictor, one frame": _frames(config, device, options.batches),
            f"code2wav, {FRAMES} frames": _pieces(config, device, options.batches),
        }
    lines = [torch.cuda.get_device_name() if device.type == "cuda" else "CPU"]
    for what, sides in times.items():
        lines.append(f"{what}, milliseconds at {', '.join(map(str, options.batches))} requests")
        for side, seconds in sides.items():
            if not side.startswith("kernels"):
                lines.append(f"  {side:16} " + "   ".join(f"{1e3 * each:8.3f}" for each in seconds))
            else:
                lines.append(f"  {side}")
                lines += [
                    f"    {count:6d} x {total / count * 1e3:8.2f} us  {name[:110]}" for name, count, total in seconds
                ]
    summary = "\n".join(lines) + "\n"
    (options.output_dir / "codec-calls.txt").write_text(summary)
    record = {"environment": kit_environment(), "command": kit_command(), "batches": options.batches, "times_s": times}
    (options.output_dir / "codec-calls.json").write_text(json.dumps(record, default=str))
    sys.stdout.write(summary)
    return 0


def _frames(config: Any, device: torch.device, batches: list[int]) -> dict[str, Any]:
    """Seconds of a sampled frame, for each batch; the kernels of one for the smallest."""
    given = config.talker_config.code_predictor_config
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = PredictorModel._from_config(given, dtype=dtype).to(device).eval()
    stack_projections(model.model.layers)
    for name, parameter in model.named_parameters():
        fill(name, parameter.data)
    num_codes, width, later = given.vocab_size, given.hidden_size, given.num_code_groups - 1
    table = torch.randn(num_codes, width, device=device, dtype=dtype)

    def predictor() -> CodePredictor:
        network = CodeNetwork(
            layers=model.model.layers, norm=model.model.norm, rotary_emb=model.model.rotary_emb,
            embed=lambda index, codes: model.model.codec_embedding[index - 1](codes) if index else table[codes],
            head=lambda index, hidden: model.lm_head[index - 1](hidden),
        )  # fmt: skip
        return CodePredictor(network, given.num_code_groups, CodeSampling(50, 0.8))

    def inputs(batch: int) -> tuple[torch.Tensor, ...]:
        hidden = torch.randn(batch, width, device=device, dtype=dtype)
        firsts = torch.randint(0, num_codes, (batch,), device=device)
        draws = torch.rand(batch, later, device=device)
        return hidden, firsts, draws

    given_inputs = [inputs(batch) for batch in batches]
    eager = predictor()
    times: dict[str, Any] = {"eager": [_time(lambda each=each: eager(*each), device) for each in given_inputs]}
    for side in ("graph", "compiled graph", "one kernel") if device.type == "cuda" else ():
        own = predictor()
        if side == "compiled graph":
            own.compile_parts()
        suits = FrameKernel.suits if side == "one kernel" else lambda *_: False
        with replace_attributes(FrameKernel, suits=staticmethod(suits)):
            own.capture(CudaGraphBackend(device), inputs(max(batches))[0])
        times[side] = [_time(lambda each=each, run=own: run(*each), device) for each in given_inputs]
        times[f"kernels, {side}"] = _kernels(lambda run=own: run(*given_inputs[0]))
    return times


def _pieces(config: Any, device: torch.device, batches: list[int]) -> dict[str, Any]:
    """Seconds of a later piece of streams, for each batch."""
    given = config.code2wav_config
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    module = Qwen3OmniMoeCode2Wav._from_config(given, dtype=dtype).to(device).eval()
    for name, parameter in module.named_parameters():
        fill(name, parameter.data)
    codes = torch.randint(0, given.codebook_size, (max(batches), given.num_quantizers, FRAMES), device=device)
    times: dict[str, Any] = {}
    for side in ("eager", "graph", "kernels") if device.type == "cuda" else ("eager",):
        decoder = StreamingCodecDecoder(module)
        if side != "eager":
            from omni_cli.models.codec.row_decoder import RowDecoder

            suits = RowDecoder.suits if side == "kernels" else lambda module: False
            with replace_attributes(RowDecoder, suits=staticmethod(suits)):
                backend, example = CudaGraphBackend(device), codes[..., :1]
                decoder.use_graphs(backend, stage="code2wav", sizes=(1, FRAMES), whole=FRAMES, example=example)
        times[side] = []
        for batch in batches:
            states = [DecoderState() for _ in range(batch)]
            decoder.decode([Piece(row[:, :1], state) for row, state in zip(codes, states, strict=False)])

            def run(decoder: StreamingCodecDecoder = decoder, states: list[DecoderState] = states) -> None:
                decoder.decode([Piece(row, state) for row, state in zip(codes, states, strict=False)])

            times[side].append(_time(run, device))
    return times


def _time(run: Callable[[], object], device: torch.device) -> float:
    clock = clock_for(device.type)
    for _ in range(3):
        run()
    spent = []
    for _ in range(REPEATS if device.type == "cuda" else 2):
        start = clock.mark()
        run()
        spent.append(clock.seconds(start, clock.mark()))
    return statistics.median(spent)


def _kernels(run: Callable[[], object]) -> list[tuple[str, int, float]]:
    """(name, count, total milliseconds) of the kernels of one call, the most expensive first."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        run()
        torch.cuda.synchronize()
    totals: dict[str, list[float]] = defaultdict(list)
    events = [e for e in recorded.profiler.kineto_results.events() if e.device_type() == DeviceType.CUDA]
    for event in events:
        totals[event.name()].append(event.duration_ns() / 1e6)
    begin, end = min(e.start_ns() for e in events), max(e.start_ns() + e.duration_ns() for e in events)
    ranked = sorted(((name, len(each), sum(each)) for name, each in totals.items()), key=lambda row: -row[2])
    spent = sum(total for _, _, total in ranked)
    whole = [("all, busy", len(events), spent), ("all, from first to last", len(events), (end - begin) / 1e6)]
    return [*whole, *ranked[:25]]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output-dir", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true", help="small models, to try the script")
    parser.add_argument("--batches", type=int, nargs="+", default=[2, 8, 32])
    options = parser.parse_args()
    options.output_dir.mkdir(parents=True, exist_ok=True)
    return options


if __name__ == "__main__":
    sys.exit(main())
