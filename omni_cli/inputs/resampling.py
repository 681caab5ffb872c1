"""Audio from one sample rate to another, band-limited, with numpy alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

# Length of the filter to each side, in zero crossings of its sinc, and the shape of its window: together they put
# the stop band 80 dB down from the lower of the two Nyquist frequencies on, and end the pass band 8 % below it.
_ZERO_CROSSINGS = 64
_KAISER_BETA = 8.0
_ROLLOFF = 0.96


def resample(samples: np.ndarray, rate: int, target_rate: int) -> np.ndarray:
    """Mono float32 samples (num_samples,) at `rate` Hz -> float32 (ceil(num_samples * target / rate),).

    Sample n of the result is at time n / `target_rate` of the same signal; beyond its ends it is taken as silence.
    """
    import numpy as np

    if rate == target_rate:
        return samples
    divisor = math.gcd(rate, target_rate)
    up, down = target_rate // divisor, rate // divisor
    # Around each output sample the filter spans this many input samples to each side.
    cutoff = _ROLLOFF * min(1.0, target_rate / rate)
    reach = math.ceil(_ZERO_CROSSINGS / cutoff)
    padded = np.pad(samples.astype(np.float32), reach)
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1)
    length = -(-len(samples) * up // down)
    result = np.empty(length, np.float32)
    offsets = np.arange(-reach, reach + 1)
    # Output samples `up` apart fall on the same fraction of an input sample and share one set of weights.
    for phase in range(min(up, length)):
        first, numerator = divmod(phase * down, up)
        weights = _windowed_sinc(offsets - numerator / up, cutoff, reach)
        of_phase = result[phase::up]
        np.matmul(windows[first::down][: len(of_phase)], weights, out=of_phase)
    return result


def _windowed_sinc(distance: np.ndarray, cutoff: float, reach: int) -> np.ndarray:
    """Weights float32 of input samples at `distance` (in input samples); they sum to 1, so that silence stays so."""
    import numpy as np

    inside = np.clip(1 - (distance / (reach + 1)) ** 2, 0, None)
    weights = np.sinc(cutoff * distance) * np.i0(_KAISER_BETA * np.sqrt(inside))
    return (weights / weights.sum()).astype(np.float32)
