"""token2wav's vocoder: waveforms of the requested frames."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from omni_cli.execution.modes import ExecutionMode
from omni_cli.models.qwen2_5_omni.token2wav.request import SynthesisRequest

# Frames on either side that affect a frame: with 16, samples differ from those of the whole by float32's rounding.
VOCODER_CONTEXT_FRAMES = 24


@dataclass(frozen=True)
class VocoderInput:
    """The frames that a request's samples depend on, (1, num_frames, mel_dim), and the range of requested samples."""

    request_id: str
    frames: torch.Tensor
    first_sample: int
    num_samples: int

    @classmethod
    def from_mel(
        cls, request: SynthesisRequest, mel: torch.Tensor, *, repeats: int, samples_per_frame: int
    ) -> VocoderInput:
        """Create it from `mel` (1, num_frames, mel_dim) of all codes of `request`, `repeats` frames per code."""
        begin, end = ((code - request.codes_start) * repeats for code in (request.start, request.end))
        if request.previous is not None:
            mel = torch.cat((request.previous.mel, mel), dim=1)
            begin, end = (frame + request.previous.mel.shape[1] for frame in (begin, end))
        first = max(0, begin - VOCODER_CONTEXT_FRAMES)
        return cls(
            request.request_id,
            mel[:, first : end + VOCODER_CONTEXT_FRAMES],
            (begin - first) * samples_per_frame,
            (end - begin) * samples_per_frame,
        )

    def select(self, samples: torch.Tensor) -> torch.Tensor:
        """Return the requested samples (num_samples,) from those that start with the first frame."""
        return samples[self.first_sample : self.first_sample + self.num_samples]


class Vocoder:
    """transformers' BigVGAN, one request at a time."""

    def __init__(self, vocoder: nn.Module) -> None:
        self.module = vocoder
        self.samples_per_frame = math.prod(vocoder.config.upsample_rates)

    def use_graphs(self, prepare: Callable[..., ExecutionMode]) -> None:
        """Do nothing: spectrograms of every length would need a graph of their own."""

    def capture_ahead(self) -> None:
        """Do nothing: nothing is compiled or captured."""

    def waveforms(self, inputs: Sequence[VocoderInput]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield request ids with samples (num_samples,) float32 on the host, as soon as they are ready."""
        for vocoder_input in inputs:
            samples = self.module(vocoder_input.frames.permute(0, 2, 1)).float()
            yield vocoder_input.request_id, vocoder_input.select(samples.reshape(-1))
