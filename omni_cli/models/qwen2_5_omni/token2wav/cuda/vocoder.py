"""token2wav's vocoder on a CUDA device: several spectrograms in one call."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from torch.nn import functional
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniAntiAliasedActivation1d

from omni_cli.backends.execution.modes import ExecutionMode
from omni_cli.core.batches import split_by_size
from omni_cli.models.qwen2_5_omni.token2wav.cuda import ALIGNMENT, VOCODER, buckets
from omni_cli.models.qwen2_5_omni.token2wav.platform import Vocoder, VocoderInput

# Samples per input row and per output row, by channels. With few channels cuDNN's products are far from
# their rate. With several samples in a row an H200 takes about half of the time in TF32, although most weights are
# zeros then; benchmarks/gpu/row_convolutions.py measures it.
SAMPLES = {24: (4, 8), 48: (2, 4), 96: (1, 2), 192: (1, 2)}


class RowConvolution:
    """A convolution of samples in rows, (num_samples, channels), without dilation and bias."""

    @torch.no_grad()
    def __init__(self, module: nn.Conv1d | nn.ConvTranspose1d, samples: tuple[int, int] | None = None) -> None:
        """Take over the weights of `module`, which no longer runs by itself.

        `samples` are the samples per input row and per output row; default: those in `SAMPLES`.
        """
        if isinstance(module, nn.ConvTranspose1d):
            (raised,), (padding,), taps = module.stride, module.padding, module.weight.transpose(0, 1)
        else:
            raised, padding, taps = 1, (module.weight.shape[-1] - 1) // 2, module.weight.flip(-1)
        channels_out, channels_in, num_taps = taps.shape
        samples_read, samples_made = samples or SAMPLES.get(channels_in, (1, 1))
        self.samples_made = max(samples_made, samples_read * raised)
        self._samples_read, self._channels = samples_read, channels_out
        self._stride = self.samples_made // (samples_read * raised)
        # Rows on either side that a row depends on.
        self._reach = -(-((num_taps - 1 - padding) // raised) // samples_read)
        num_rows = 2 * self._reach + self._stride
        weight = taps.new_zeros(self.samples_made, channels_out, num_rows, samples_read, channels_in)
        for sample in range(self.samples_made):
            for row in range(num_rows):
                for at in range(samples_read):
                    tap = sample + padding - raised * ((row - self._reach) * samples_read + at)
                    if 0 <= tap < num_taps:
                        weight[sample, :, row, at] = taps[:, :, tap]
        weight = weight.view(self.samples_made * channels_out, 1, num_rows, samples_read * channels_in)
        # As images of one row, whose channels lie together.
        self._weight = weight.permute(0, 3, 1, 2)
        # The same memory, so that weights are kept once, and their precision can be read back.
        module.weight = nn.Parameter(self._weight[:, :, 0], requires_grad=False)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the output samples (num_samples, channels), whose number is a multiple of `samples_made`."""
        images = rows.view(1, 1, -1, self._samples_read * rows.shape[1]).permute(0, 3, 1, 2)
        convolved = functional.conv2d(images, self._weight, padding=(0, self._reach), stride=(1, self._stride))
        return convolved.permute(0, 2, 3, 1).reshape(-1, self._channels)


# The signatures of `FusedActivation.__call__` and `fused_mean`.
Activation = Callable[..., torch.Tensor]
Mean = Callable[..., torch.Tensor]
# Frames in one call: 20 s of sound. More is no faster, and takes more memory.
MAX_FRAMES_PER_CALL = 2000
# Frames of the largest CUDA graph, almost 5 s of sound: for more, launches take less time than the work.
LARGEST_GRAPH = 480


class PackedVocoder(Vocoder):
    """transformers' BigVGAN over several spectrograms, concatenated in time; see `PackedBigVGAN`."""

    def __init__(
        self,
        vocoder: nn.Module,
        make_activation: Callable[[nn.Module], Activation],
        mean: Mean,
        compile_ahead: Callable[..., object],
    ) -> None:
        """`compile_ahead` compiles what calls of activations need; it takes those of `PackedBigVGAN.activations`."""
        super().__init__(vocoder)
        self._packed = PackedBigVGAN(vocoder, make_activation, mean)
        self._compile_ahead = compile_ahead
        self._graphs: ExecutionMode | None = None
        self._graph_sizes: list[int] = []
        self.gap = self._packed.gap

    def use_graphs(self, prepare: Callable[..., ExecutionMode]) -> None:
        """Replay a graph per number of frames; `prepare` is `GraphMode` without a module and `max_graphs`."""
        multiple = self._packed.multiple
        self._graph_sizes = [multiple * size for size in buckets(LARGEST_GRAPH // multiple, VOCODER)]
        self._graphs = prepare(self._packed, max_graphs=len(self._graph_sizes))

    def capture_ahead(self) -> None:
        self._compile_ahead(self._packed.activations())
        mel = torch.zeros(1, 1, self.module.config.mel_dim, device=self.module.conv_pre.weight.device)
        # The largest first, whose memory the others then share.
        for size in reversed(self._graph_sizes):
            self._samples(*self.pack([mel.expand(1, size - self.gap, -1)]))

    def waveforms(self, inputs: Sequence[VocoderInput]) -> Iterator[tuple[str, torch.Tensor]]:
        previous: Iterator[tuple[str, torch.Tensor]] = iter(())
        for batch in split_by_size(inputs, lambda each: each.frames.shape[1], MAX_FRAMES_PER_CALL):
            copy = AsyncSamplesCopy(self._samples(*self.pack([each.frames for each in batch])))
            # The device works on this batch while the host returns the one before.
            yield from previous
            previous = self._separate(batch, copy)
        yield from previous

    def _separate(self, batch: list[VocoderInput], copy: AsyncSamplesCopy) -> Iterator[tuple[str, torch.Tensor]]:
        samples, start = copy.wait(), 0
        for vocoder_input, length in zip(batch, self._get_lengths([each.frames for each in batch]), strict=True):
            yield vocoder_input.request_id, vocoder_input.select(samples[start * self.samples_per_frame :])
            start += length

    def pack(self, spectrograms: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (1, mel_dim, num_frames) with gaps, and (2, num_frames) int32 bounds of each frame's sequence."""
        lengths = self._get_lengths(spectrograms)
        num_frames = self._get_num_frames(sum(lengths))
        mel = spectrograms[0].new_zeros(1, num_frames, spectrograms[0].shape[-1])
        bounds = torch.zeros(2, num_frames, dtype=torch.int32)
        start = 0
        for frames, length in zip(spectrograms, lengths, strict=True):
            end = start + frames.shape[1]
            mel[:, start:end] = frames
            bounds[0, start:end], bounds[1, start:end] = start, end
            start += length
        return mel.permute(0, 2, 1), bounds

    def _get_lengths(self, spectrograms: Sequence[torch.Tensor]) -> list[int]:
        """Return the number of frames that each spectrogram takes, including the gap before the next one."""
        lengths = [frames.shape[1] + self.gap for frames in spectrograms]
        return [-(-length // ALIGNMENT) * ALIGNMENT for length in lengths[:-1]] + lengths[-1:]

    def _get_num_frames(self, num_used: int) -> int:
        """Return the frames of the smallest graph for `num_used` frames; without one, the next whole multiple."""
        graph_sizes = (size for size in self._graph_sizes if size >= num_used)
        return next(graph_sizes, -(-num_used // self._packed.multiple) * self._packed.multiple)

    def _samples(self, mel: torch.Tensor, bounds: torch.Tensor) -> torch.Tensor:
        spectrum = self.module.process_mel_spectrogram(mel)[0].mT.contiguous()
        eager: AbstractContextManager[None] = nullcontext()
        if self._graphs is not None and len(spectrum) not in self._graph_sizes:
            eager = self._graphs.eagerly()
        with eager:
            return self._packed(spectrum, bounds.to(mel.device))


class AsyncSamplesCopy:
    """A copy of samples to page-locked memory of the host, during the device's next work.

    Of `execution.copies`, `AsyncCopy` would sleep while it waits, and `SyncCopy` copies to memory without pages yet.
    """

    def __init__(self, samples: torch.Tensor) -> None:
        self._samples, self._copied = samples, None
        if samples.is_cuda:
            self._samples = torch.empty(samples.shape, dtype=samples.dtype, pin_memory=True)
            self._samples.copy_(samples, non_blocking=True)
            self._copied = torch.cuda.current_stream(samples.device).record_event()

    def wait(self) -> torch.Tensor:
        if self._copied is not None:
            self._copied.synchronize()
        return self._samples


class PackedBigVGAN(nn.Module):
    """The layers of transformers' BigVGAN over sequences with gaps between them.

    Convolutions run over all sequences; activations, which keep sequences apart, leave silence in between. Samples are
    rows, (num_samples, channels), the layout in which cuDNN's products run without copies. A dilated convolution is
    computed without dilation, over rows in the order of its phases. The activation before it writes them in this order,
    and the last gap keeps phases apart as well. The bias of a convolution is added by the activation after it.
    """

    def __init__(self, vocoder: nn.Module, make_activation: Callable[[nn.Module], Activation], mean: Mean) -> None:
        super().__init__()
        config, per_stage = vocoder.config, vocoder.num_residual_blocks
        self.vocoder = vocoder
        self._mean = mean
        self._rates = [math.prod(config.upsample_rates[:stage]) for stage in range(len(config.upsample_rates) + 1)]
        self._blocks = [vocoder.resblocks[at : at + per_stage] for at in range(0, len(vocoder.resblocks), per_stage)]
        # The sums of biases before each pair of a block's convolutions and after the last pair.
        self._biases = [
            [_cumulative_biases(upsample, block) for block in blocks]
            for (upsample,), blocks in zip(vocoder.ups, self._blocks, strict=True)
        ]
        self._mean_biases = [sum(sums[-1] for sums in stage) / per_stage for stage in self._biases]
        self._activations: dict[nn.Module, Activation] = {}
        self._convolutions: dict[nn.Module, RowConvolution] = {}
        for module in vocoder.modules():
            if isinstance(module, Qwen2_5OmniAntiAliasedActivation1d):
                self._activations[module] = make_activation(module)
            elif isinstance(module, nn.Conv1d | nn.ConvTranspose1d):
                self._convolutions[module] = RowConvolution(module)
        reach = max(
            (size - 1) // 2 * max(dilations)
            for size, dilations in zip(config.resblock_kernel_sizes, config.resblock_dilation_sizes, strict=True)
        )
        # The reach of any convolution in frames, which is longest after the first upsampling.
        self.gap = max(vocoder.conv_pre.padding[0], math.ceil(reach / self._rates[1]))
        # Frames of which the samples of every stage fall into whole phases and rows.
        self.multiple = self._get_multiple(1, [vocoder.conv_pre])
        for upsample, blocks, rate in zip(vocoder.ups, self._blocks, self._rates[1:], strict=True):
            self.multiple = math.lcm(self.multiple, self._get_multiple(rate, [*upsample, *blocks]))

    def _get_multiple(self, rate: int, parts: Sequence[nn.Module]) -> int:
        """Return the frames of which `parts` with `rate` samples per frame have whole phases and rows."""
        convolutions = [module for part in parts for module in part.modules() if module in self._convolutions]
        dilations = (module.dilation[0] for module in convolutions)
        samples = math.lcm(*dilations, *(self._convolutions[module].samples_made for module in convolutions))
        return samples // math.gcd(samples, rate)

    def activations(self) -> Iterator[tuple[Activation, torch.Tensor, int]]:
        """Yield an activation of each stage, with the bias (channels,) and the samples per frame of its calls."""
        for blocks, rate, biases in zip(self._blocks, self._rates[1:], self._biases, strict=True):
            yield self._activations[blocks[0].activations[0]], biases[0][0], rate

    def forward(self, spectrum: torch.Tensor, bounds: torch.Tensor) -> torch.Tensor:
        """Return samples (num_frames * samples_per_frame,) float32.

        `spectrum` (num_frames, mel_dim) of a multiple of `multiple` frames, `gap` of them after each sequence; `bounds`
        (2, num_frames) int32, the first frame and the end of each frame's sequence, equal in a gap.
        """
        vocoder = self.vocoder
        sounds = (bounds[1] > bounds[0])[:, None]
        hidden = self._convolutions[vocoder.conv_pre](spectrum.where(sounds, 0.0))
        hidden = self._mean([hidden], vocoder.conv_pre.bias, bounds, 1)
        for (upsample,), blocks, rate, biases, bias in zip(
            vocoder.ups, self._blocks, self._rates[1:], self._biases, self._mean_biases, strict=True
        ):
            hidden = self._convolutions[upsample](hidden)
            parts = [
                part
                for block, block_biases in zip(blocks, biases, strict=True)
                for part in self._residual(block, block_biases, hidden, bounds, rate)
            ]
            hidden = self._mean(parts, bias, bounds, rate, share=1 / len(blocks))
            del parts  # before those of the next stage are made
        post = self._activations[vocoder.activation_post]
        hidden = post(hidden, bounds, self._rates[-1], bias=torch.zeros_like(bias))
        return self._convolutions[vocoder.conv_post](hidden).float().clamp_(-1.0, 1.0).reshape(-1)

    def _residual(
        self, block: nn.Module, biases: Sequence[torch.Tensor], hidden: torch.Tensor, bounds: torch.Tensor, rate: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return two parts whose sum is the block's output, without its bias."""
        activations = (self._activations[module] for module in block.activations)
        branch = None
        for first, second, bias in zip(block.convs1, block.convs2, biases[:-1], strict=True):
            hidden = hidden if branch is None else hidden + branch
            (phases,) = first.dilation
            # One name, so that no tensor lives longer than the next operation needs it.
            rows = branch = None
            rows = next(activations)(hidden, bounds, rate, bias=bias, phases_out=phases)
            rows = self._convolutions[first](rows)
            rows = next(activations)(rows, bounds, rate, bias=first.bias, phases_in=phases)
            branch = self._convolutions[second](rows)
        return hidden, branch


@torch.no_grad()
def _cumulative_biases(upsample: nn.ConvTranspose1d, block: nn.Module) -> list[torch.Tensor]:
    return list(itertools.accumulate([upsample.bias, *(second.bias for second in block.convs2)]))
