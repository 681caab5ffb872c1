"""Cost of a bit-identical waveform of token2wav: cuDNN deterministic against its default.

    PYTHONPATH=. python benchmarks/gpu/vocoder_repeats.py -o DIR [--time-budget 60]

cuDNN may pick another kernel for the same convolution from call to call, so the same mel spectrogram gives waveforms
that differ by about 2e-4. Both sides are transformers' token2wav at the 7B model's size on the same weights,
interleaved.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from omni_cli.core.compat.torchvision import ensure_torchvision_importable

ensure_torchvision_importable()

import torch
from diffusion_modes import _work, record_of, variant_of, workload_of
from goals import compared
from measure import interleave, note_repeats, start
from models import models
from sides import PLAIN, Call, Token2Wav

from omni_cli.records.record_file import save_record

SIDES = {"cudnn=default": False, "cudnn=deterministic": True}
METRICS = ("e2e_s", "vocoder_s", "denoise_loop_s")


class Repeating:
    """A side that sets cuDNN's deterministic flag."""

    def __init__(self, side: Token2Wav, deterministic: bool) -> None:
        self._side = side
        self._deterministic = deterministic
        self.denoiser, self.effective = side.denoiser, side.effective

    def run(self, seed: int) -> Call:
        with torch.backends.cudnn.flags(enabled=True, deterministic=self._deterministic):
            return self._side.run(seed)

    def counters(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        """Do nothing: the other side uses the same model."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output-dir", type=Path, required=True)
    parser.add_argument("--time-budget", type=float, default=60.0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    device = torch.device(options.device)
    model = models(tiny=options.tiny)["token2wav"]
    plain = start(PLAIN, lambda: Token2Wav(model, model.make(device), options.device, None), device)
    if plain.error is not None:
        raise SystemExit(plain.error)
    note_repeats(plain)
    sides = [start(name, lambda flag=flag: Repeating(plain.side, flag), device) for name, flag in SIDES.items()]
    until = time.perf_counter() + options.time_budget
    interleave(sides, lambda side, seed: side.run(seed), _work(model), blocks=model.blocks * 4, until=until)
    record = record_of("token2wav-cudnn", workload_of(model), [variant_of(each) for each in sides], device)
    options.output_dir.mkdir(parents=True, exist_ok=True)
    save_record(record, options.output_dir / "token2wav-cudnn.json")
    for name, value in plain.notes.items():
        sys.stdout.write(f"{name} {value:.3g}\n")
    for metric in METRICS:
        found = compared(record, *SIDES, metric)
        low, high = found.ci95 or (float("nan"),) * 2
        sys.stdout.write(
            f"{metric:16} deterministic to default {found.ratio:.4f} [{low:.4f}, {high:.4f}] {found.verdict}\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
