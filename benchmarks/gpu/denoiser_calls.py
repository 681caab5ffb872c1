"""One call of token2wav's packed denoiser on a GPU: its kernels, and replays of its CUDA graph by number of blocks.

    PYTHONPATH=. python benchmarks/gpu/denoiser_calls.py [--precision tf32] [--blocks 4 34 272] [--kernels 4 272]

Sizes of Qwen2.5-Omni-7B and random weights; no vLLM, no checkpoint. A block is 24 frames, 12 codes, of one of
guidance's two halves: a first chunk has 4, a request of four seconds 34. Milliseconds are medians of 20 calls, with
keys and values for the next chunk and without; `--kernels` lists the device's time by kernel of an eager call.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

from token2wav_batching import SAMPLING, SIZES, make_model  # isort: skip

import torch

from omni_cli.backends.execution.modes import make_execution_mode
from omni_cli.backends.execution.precision import arithmetic, use_precision
from omni_cli.models.qwen2_5_omni.token2wav.cuda.platform import CudaPlatform
from omni_cli.models.qwen2_5_omni.token2wav.velocity import Layout, PackedVelocity

REPEATS = 20


def main() -> int:
    options = _options()
    device = torch.device("cuda")
    velocity = PackedVelocity(make_model(options.sizes, device).code2wav_dit_model, CudaPlatform())
    use_precision(options.precision, stage="token2wav", device="cuda")
    _say(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {options.precision}")
    with torch.inference_mode(), arithmetic(options.precision, "cuda"):
        for num_blocks in options.kernels:
            _say(f"{num_blocks} blocks, µs and kernels of one call:\n{kernels(velocity, num_blocks)}")
        make_execution_mode(velocity, "cudagraph", stage="token2wav", device="cuda", max_graphs=64, clone_outputs=False)
        for num_blocks in options.blocks:
            carrying, alone = (timed(velocity, num_blocks, carries=carries) for carries in (True, False))
            _say(f"{num_blocks:5} blocks   {carrying * 1e3:7.3f} ms   {alone * 1e3:7.3f} ms without keys and values")
    return 0


def arguments(velocity: PackedVelocity, num_blocks: int, *, carries: bool) -> list[torch.Tensor]:
    """Return the arguments of a call for two sequences of the same length."""
    dit, device = velocity.dit, velocity.dit.device
    layout = Layout((num_blocks * dit.block_size // 2,) * 2, dit.block_size, num_blocks)
    frames = torch.randn(1, layout.num_frames, dit.mel_dim, device=device)
    conditions = torch.randn(1, layout.num_frames, velocity.conditions_proj.in_features, device=device)
    positions = layout.positions([0, 0]).to(device)[None]
    modulation = velocity.evaluations(SAMPLING, num_rows=1).modulations[0]
    inputs = [frames, modulation, *velocity.constant_inputs(layout, conditions, positions, [] if carries else None)]
    if carries:
        num_layers, *shape = velocity.carried_shape
        inputs.append(torch.zeros(num_layers, num_blocks, *shape, dtype=velocity.carried_dtype, device=device))
    return inputs


def timed(velocity: PackedVelocity, num_blocks: int, *, carries: bool) -> float:
    """Median seconds of a call, to its end on the device."""
    inputs = arguments(velocity, num_blocks, carries=carries)
    seconds = []
    for _ in range(REPEATS + 2):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        velocity(*inputs)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds[2:])  # the first captures the graph


def kernels(velocity: PackedVelocity, num_blocks: int) -> str:
    inputs = arguments(velocity, num_blocks, carries=True)
    velocity(*inputs)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        velocity(*inputs)
        torch.cuda.synchronize()
    rows = sorted(profile.key_averages(), key=lambda row: -row.self_device_time_total)
    return "\n".join(f"{row.self_device_time_total:10.1f} {row.count:5}  {row.key[:90]}" for row in rows[:15])


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--precision", choices=("float32", "tf32", "bfloat16"), default="tf32")
    parser.add_argument("--sizes", choices=tuple(SIZES), default="7b")
    parser.add_argument("--blocks", nargs="+", type=int, default=[4, 8, 16, 34, 68, 136, 272, 544])
    parser.add_argument("--kernels", nargs="*", type=int, default=[])
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
