"""The spectrogram of a sound of any length, as transformers computes it of the whole, one window at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional

# Frames that are computed at once to find the loudest.
_PIECE = 6000


class Spectrogram:
    """The log-mel frames of samples float32 (num_samples,); values depend on the loudest of the whole sound.

    A sound that is shorter than the window of `extractor` is filled up with silence, which counts for no frames.
    """

    def __init__(self, samples: np.ndarray, extractor: Any) -> None:
        self.num_frames: int = max(1, len(samples) // extractor.hop_length)
        padding = max(0, extractor.n_samples - len(samples))
        self._samples = np.pad(samples, (0, padding)) if padding else samples
        self._num_all = len(self._samples) // extractor.hop_length
        self._extractor = extractor
        self._filters = torch.from_numpy(extractor.mel_filters).to(torch.float32).T
        self._window = torch.hann_window(extractor.n_fft)
        pieces = range(0, self._num_all, _PIECE)
        self._loudest = max(float(self._log_mel(begin, begin + _PIECE).max()) for begin in pieces)

    def window(self, begin: int, size: int) -> torch.Tensor:
        """Return frames (num_mels, size) from `begin` on; as in transformers, those after the sound's end are 0."""
        frames = torch.clamp(self._log_mel(begin, begin + size), min=self._loudest - 8.0)
        return functional.pad((frames + 4.0) / 4.0, (0, size - frames.shape[1]))

    def _log_mel(self, begin: int, end: int) -> torch.Tensor:
        end, half, hop = min(end, self._num_all), self._extractor.n_fft // 2, self._extractor.hop_length
        start, stop, length = begin * hop - half, (end - 1) * hop + half, len(self._samples)
        piece = torch.from_numpy(np.array(self._samples[max(start, 0) : stop]))[None]
        # The ends of the sound are mirrored.
        piece = functional.pad(piece, (max(-start, 0), max(stop - length, 0)), mode="reflect")
        spectrum = torch.stft(
            piece[0], self._extractor.n_fft, hop, window=self._window, center=False, return_complex=True
        )
        return torch.clamp(self._filters @ (spectrum.abs() ** 2).contiguous(), min=1e-10).log10()
