"""token2wav's vocoder: waveforms of the requested frames, one request at a time or several in one call."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from omni_cli.models.qwen2_5_omni.speech_request import SynthesisRequest

# Frames on either side that affect a frame: with 16, samples differ from the whole's by float32's rounding.
VOCODER_CONTEXT_FRAMES = 24
# Frames in one call: 40 s of sound. More is no faster, and takes more memory.
MAX_FRAMES_PER_CALL = 4000

# Arguments: a module, samples (1, channels, num_samples), bounds (2, num_frames) of sequences, samples per frame.
Activation = Callable[[nn.Module, torch.Tensor, torch.Tensor, int], torch.Tensor]


@dataclass(frozen=True)
class VocoderInput:
    """The frames that a request's samples depend on, (1, num_frames, mel_dim), and the range of requested samples."""

    request_id: str
    frames: torch.Tensor
    first_sample: int
    num_samples: int

    @classmethod
    def of(cls, request: SynthesisRequest, mel: torch.Tensor, *, repeats: int, samples_per_frame: int) -> VocoderInput:
        """Create it from `mel` (1, num_frames, mel_dim) of all codes of `request`."""
        begin, end = ((code - request.codes_start) * repeats for code in (request.start, request.end))
        if request.carried is not None:
            mel = torch.cat((request.carried.mel, mel), dim=1)
            begin, end = (frame + request.carried.mel.shape[1] for frame in (begin, end))
        first = max(0, begin - VOCODER_CONTEXT_FRAMES)
        return cls(
            request.request_id,
            mel[:, first : end + VOCODER_CONTEXT_FRAMES],
            (begin - first) * samples_per_frame,
            (end - begin) * samples_per_frame,
        )

    def wanted(self, samples: torch.Tensor) -> torch.Tensor:
        return samples[self.first_sample : self.first_sample + self.num_samples]


class Vocoder:
    """transformers' BigVGAN, one request at a time."""

    def __init__(self, vocoder: nn.Module) -> None:
        self.module = vocoder
        self.samples_per_frame = math.prod(vocoder.config.upsample_rates)

    def waveforms(self, inputs: Sequence[VocoderInput]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield request ids with samples (num_samples,) float32 on the host, as soon as they are ready."""
        for each in inputs:
            samples = self.module(each.frames.permute(0, 2, 1)).float()
            yield each.request_id, each.wanted(samples.reshape(-1))


class PackedVocoder(Vocoder):
    """transformers' BigVGAN over several spectrograms, concatenated in time.

    Convolutions run over all of them; activations, which keep sequences apart, leave silence in between.
    """

    def __init__(self, vocoder: nn.Module, activation: Activation) -> None:
        super().__init__(vocoder)
        self._activation = activation
        config = vocoder.config
        self._rates = [math.prod(config.upsample_rates[:stage]) for stage in range(len(config.upsample_rates) + 1)]
        reach = max(
            (size - 1) // 2 * max(dilations)
            for size, dilations in zip(config.resblock_kernel_sizes, config.resblock_dilation_sizes, strict=True)
        )
        # The reach of any convolution in frames, which is longest after the first upsampling.
        self.gap = max(vocoder.conv_pre.padding[0], math.ceil(reach / self._rates[1]))

    def waveforms(self, inputs: Sequence[VocoderInput]) -> Iterator[tuple[str, torch.Tensor]]:
        for group in grouped(inputs):
            lengths = [each.frames.shape[1] for each in group]
            mel, bounds = self.pack([each.frames for each in group])
            samples = self(mel, bounds.to(mel.device)).cpu()
            start = 0
            for each, length in zip(group, lengths, strict=True):
                yield each.request_id, each.wanted(samples[start * self.samples_per_frame :])
                start += length + self.gap

    def pack(self, frames: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (1, mel_dim, num_frames) with gaps, and (2, num_frames) int32 bounds of each frame's sequence."""
        lengths = [each.shape[1] + self.gap for each in frames]
        mel = frames[0].new_zeros(1, sum(lengths), frames[0].shape[-1])
        bounds = torch.zeros(2, sum(lengths), dtype=torch.int32)
        start = 0
        for each, length in zip(frames, lengths, strict=True):
            end = start + each.shape[1]
            mel[:, start:end] = each
            bounds[0, start:end], bounds[1, start:end] = start, end
            start += length
        return mel.permute(0, 2, 1), bounds

    def __call__(self, mel: torch.Tensor, bounds: torch.Tensor) -> torch.Tensor:
        """Return samples (num_frames * samples_per_frame,) float32 of the result of `pack`."""
        module = self.module
        sounds = bounds[1] > bounds[0]
        hidden = module.conv_pre(module.process_mel_spectrogram(mel).where(sounds, 0.0))
        per_stage = module.num_residual_blocks
        for stage, upsample in enumerate(module.ups):
            hidden = upsample[0](hidden.where(sounds.repeat_interleave(self._rates[stage]), 0.0))
            blocks = module.resblocks[stage * per_stage : (stage + 1) * per_stage]
            rate = self._rates[stage + 1]
            hidden = sum(self._residual(block, hidden, bounds, rate) for block in blocks) / per_stage
        hidden = self._activation(module.activation_post, hidden, bounds, self._rates[-1])
        return module.conv_post(hidden).float().clamp(-1.0, 1.0).reshape(-1)

    def _residual(self, block: nn.Module, hidden: torch.Tensor, bounds: torch.Tensor, rate: int) -> torch.Tensor:
        activations = iter(block.activations)
        for first, second in zip(block.convs1, block.convs2, strict=True):
            made = first(self._activation(next(activations), hidden, bounds, rate))
            hidden = hidden + second(self._activation(next(activations), made, bounds, rate))
        return hidden


def grouped(inputs: Sequence[VocoderInput]) -> Iterator[list[VocoderInput]]:
    """Group in order, with as many as `MAX_FRAMES_PER_CALL` allows, and at least one."""
    group: list[VocoderInput] = []
    num_frames = 0
    for each in inputs:
        if group and num_frames + each.frames.shape[1] > MAX_FRAMES_PER_CALL:
            yield group
            group, num_frames = [], 0
        group.append(each)
        num_frames += each.frames.shape[1]
    if group:
        yield group
