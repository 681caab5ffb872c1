"""The vocoder's convolutions on a GPU, by how many samples lie in a row that is read and in one that is made.

    PYTHONPATH=. python benchmarks/gpu/row_convolutions.py [--frames 3720] [--precision float32]

Channels, kernel sizes and rates of Qwen2.5-Omni-7B's BigVGAN, random weights; no vLLM, no checkpoint. Milliseconds of a
call, medians of five times eight; what `RowConvolution` selects is marked.
"""

from __future__ import annotations

import argparse
import statistics
import sys

import torch
from torch import nn

from omni_cli.models.qwen2_5_omni.token2wav.cuda.vocoder import SAMPLES, RowConvolution

# Channels and samples per frame of each stage.
STAGES = ((768, 5), (384, 15), (192, 30), (96, 60), (48, 120), (24, 240))
TAPS = (3, 7, 11)
CALLS = 8


def main() -> int:
    options = _options()
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = options.precision == "tf32"
    sys.stdout.write(f"{torch.cuda.get_device_name()}, {options.precision}, {options.frames} frames, ms a call\n")
    with torch.inference_mode():
        for channels, rate in STAGES:
            rows = torch.randn(options.frames * rate, channels, device="cuda")
            for taps in TAPS:
                module = nn.Conv1d(channels, channels, taps, padding=(taps - 1) // 2, device="cuda")
                sys.stdout.write(f"{channels:4} channels, {taps:2} taps   {_line(module, rows)}\n")
    return 0


def _line(module: nn.Conv1d, rows: torch.Tensor) -> str:
    channels = rows.shape[1]
    times = []
    for read in (1, 2, 4, 8):
        for made in (read, 2 * read):
            if made == 1 or (read * channels <= 192 and made * channels <= 384):
                mark = "*" if SAMPLES.get(channels, (1, 1)) == (read, made) else " "
                times.append(f"{read}:{made}{mark} {_milliseconds(module, rows, (read, made)):.4f}")
    return "  ".join(times)


def _milliseconds(module: nn.Conv1d, rows: torch.Tensor, samples: tuple[int, int]) -> float:
    """Time with the weights of a copy, which `RowConvolution` takes over."""
    copy = nn.Conv1d(module.in_channels, module.out_channels, module.kernel_size, device="cuda")
    copy.load_state_dict(module.state_dict())
    convolution = RowConvolution(copy, samples)
    times = []
    for _ in range(6):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(CALLS):
            convolution(rows)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / CALLS)
    return statistics.median(times[1:])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=3720, help="of all sequences in a call")
    parser.add_argument("--precision", choices=("float32", "tf32"), default="tf32")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
