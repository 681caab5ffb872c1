"""A CPU build of torch without a torchaudio that loads.

PyPI's torchaudio is linked against CUDA and does not load next to a CPU build of torch. transformers' Higgs Audio v2
tokenizer imports it for one function, `torchaudio.functional.resample`, which is done here with torch's own means.
"""

from __future__ import annotations

import importlib
import math
import sys
from types import ModuleType, SimpleNamespace

import torch

# torchaudio's defaults: zero crossings of the filter on each side, and its cutoff as a share of the lower rate.
_CROSSINGS, _ROLLOFF = 6, 0.99


def import_with_torchaudio(module: str) -> ModuleType:
    """Import a module that imports torchaudio, and let it use `resample` from here where there is none."""
    try:
        importlib.import_module("torchaudio")
    except (ImportError, OSError):
        stand_in = ModuleType("torchaudio")
        stand_in.functional = SimpleNamespace(resample=resample)  # type: ignore[attr-defined]
        sys.modules["torchaudio"] = stand_in
        try:
            return importlib.import_module(module)
        finally:
            sys.modules["torchaudio"] = None  # type: ignore[assignment]  # as `prepare_libraries` leaves it
    return importlib.import_module(module)


def resample(waveform: torch.Tensor, orig_freq: int, new_freq: int) -> torch.Tensor:
    """Return a waveform (..., num_samples) at another rate, filtered with a sinc in a Hann window."""
    common = math.gcd(orig_freq, new_freq)
    step, phases = orig_freq // common, new_freq // common
    cutoff = _ROLLOFF * min(step, phases) / step
    reach = math.ceil(_CROSSINGS / cutoff)
    taps = torch.arange(-reach, reach + step, dtype=torch.float64)
    outputs = torch.arange(phases, dtype=torch.float64)[:, None] * step / phases
    distances = ((taps - outputs) * cutoff).clamp(-_CROSSINGS, _CROSSINGS)
    kernel = cutoff * distances.sinc() * (distances * math.pi / (2 * _CROSSINGS)).cos().square()
    windows = torch.nn.functional.pad(waveform, (reach, reach + step)).unfold(-1, len(taps), step)
    samples = (windows @ kernel.T.to(waveform)).flatten(-2)
    return samples[..., : -(-phases * waveform.shape[-1] // step)]
