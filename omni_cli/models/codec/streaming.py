"""Decode codec codes piece by piece, with the samples of whole-sequence decoding.

`DecoderCall` runs transformers' own modules. Hooks on their causal convolutions prepend the inputs that the receptive
field still needs and drop the outputs that were already returned; attention reads the keys and values of its sliding
window from a cache. Every sample is thus computed from the same values as in one call on all codes. All inputs and
results of a call are tensors, so that it can be replayed from a CUDA graph; `StreamingCodecDecoder` keeps them per
request. `LookaheadDecoder` is for codecs whose convolutions look ahead.
There, a sample depends on some frames around its own. A piece is decoded again with as many frames before it, and its
last ones wait until as many have followed, so that every sample is computed from the same frames as in one call.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers import MimiModel

from omni_cli.backends.execution.counters import ExecutionCounters
from omni_cli.backends.execution.graphs import GraphBackend, GraphManager, batch_sizes

# Frames of all requests in one call. Longer pieces are split, which limits the memory and changes no sample.
MAX_FRAMES_PER_CALL = 512


@dataclass
class DecoderState:
    """State of one request between pieces; empty before the first piece."""

    # Per convolution with context: its last inputs (1, in_channels, context_length).
    contexts: dict[int, torch.Tensor] = field(default_factory=dict)
    # One tensor of all layers: keys and values (1, num_layers, 2, num_key_value_heads, sliding_window - 1, head_dim).
    keys_values: list[torch.Tensor] = field(default_factory=list)
    num_positions: int = 0


@dataclass(frozen=True)
class Piece:
    """The next codes of one request, int64 (num_codebooks, num_frames), at least one frame.

    After its last piece, a request's state must not be used.
    """

    codes: torch.Tensor
    state: DecoderState
    is_last: bool = False

    def __post_init__(self) -> None:
        if self.codes.ndim != 2 or self.codes.shape[-1] == 0:
            raise ValueError(f"codes are of shape {tuple(self.codes.shape)} instead of (num_codebooks, num_frames)")

    @property
    def is_first(self) -> bool:
        return self.state.num_positions == 0


StepResult = tuple[torch.Tensor, dict[int, torch.Tensor], list[torch.Tensor]]


class DecoderCall(nn.Module):
    """A causal codec decoder of transformers as a function of codes and of the state of earlier ones.

    The decoder's module, called directly, still decodes whole sequences.
    """

    def __init__(self, module: nn.Module) -> None:
        """Raise `ValueError` if `module` has parts that cannot be decoded piece by piece."""
        super().__init__()
        decoder, call = module, module.forward
        if isinstance(module, MimiModel):  # its other modules are the encoder's
            decoder = nn.ModuleList([module.upsample, module.decoder_transformer, module.decoder])

            def call(codes: torch.Tensor) -> torch.Tensor:
                samples: torch.Tensor = module.decode(codes).audio_values
                return samples

        self._call: Callable[[torch.Tensor], torch.Tensor] = call
        self._contexts: dict[int, torch.Tensor] | None = None
        self._kept: dict[int, torch.Tensor] = {}
        self._decoder: Any = decoder
        for index, convolution in enumerate(_causal_convolutions(decoder)):
            self._follow(convolution, index)
        (transformer,) = [part for part in decoder.modules() if hasattr(part, "rotary_emb")]
        self._config: Any = transformer.config
        transformer.register_forward_pre_hook(self._attend_to_the_past, with_kwargs=True)

    def forward(
        self,
        codes: torch.Tensor,
        starts: torch.Tensor,
        contexts: dict[int, torch.Tensor],
        keys_values: list[torch.Tensor],
    ) -> StepResult:
        """Return samples (batch, num_samples) of codes (batch, num_codebooks, num_frames), and the new state.

        `starts` (batch,) are the transformer's positions so far. Contexts, keys and values are those of
        `DecoderState`, batched; empty before a request's first piece.
        """
        self._contexts, self._kept = contexts, {}
        self._starts = starts.to(codes.device, non_blocking=True)[:, None]
        layers = [layer for pairs in keys_values for layer in pairs.unbind(1)]
        self._window = KeyValueCache(layers, self._config.sliding_window - 1)
        try:
            samples = self._call(codes)[:, 0]
        finally:
            self._contexts = None
        num_frames = codes.shape[-1]
        self.positions_per_frame = self._window.num_new // num_frames
        if contexts:
            # A request's first frame has fewer samples.
            self.samples_per_frame = samples.shape[-1] // num_frames
        return samples, self._kept, [torch.stack(self._window.kept, dim=1)]

    def use_kernels(self) -> None:
        """Let code2wav run as few kernels, on a device that has Triton, if `RowDecoder` suits it."""
        from omni_cli.models.codec.row_decoder import RowDecoder, fuse_operations

        if RowDecoder.suits(self._decoder):
            fuse_operations(self._decoder)
            self._decoder.decoder = RowDecoder(
                self._decoder.decoder,
                context=lambda: (self._contexts or {}).get(_ROWS),
                keep=lambda context: self._kept.update({_ROWS: context}),
            )

    def _follow(self, module: nn.Module, index: int) -> None:
        """Let a causal convolution continue where the requests' last pieces ended."""
        conv: Any = module.conv
        transposed = isinstance(conv, nn.ConvTranspose1d)
        (kernel,), (stride,), (dilation,) = conv.kernel_size, conv.stride, conv.dilation
        length = -(-(kernel - stride) // stride) if transposed else (kernel - 1) * dilation
        if length == 0:
            return
        upsampling = stride if transposed else 1

        def prepend(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
            if not self._contexts:
                return None
            hidden, *others = args
            return (torch.cat([self._contexts[index], hidden], -1), *others)

        def trim(_: nn.Module, args: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor | None:
            if self._contexts is None:
                return None
            hidden = args[0]
            # Before a request's first input, the module pads with zeros.
            kept = nn.functional.pad(hidden[..., -length:], (max(0, length - hidden.shape[-1]), 0))
            self._kept[index] = kept.clone(memory_format=torch.contiguous_format)
            return output[..., -(hidden.shape[-1] - length) * upsampling :] if self._contexts else output

        module.register_forward_pre_hook(prepend)
        module.register_forward_hook(trim)

    def _attend_to_the_past(
        self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Pass the transformer the requests' keys and values, positions, and the matching mask."""
        if self._contexts is None:
            return None
        hidden = args[0] if args else kwargs["inputs_embeds"]
        past, (num_new, device) = self._config.sliding_window - 1, (hidden.shape[1], hidden.device)
        positions = self._starts + torch.arange(num_new, device=device)
        key_positions = (self._starts + torch.arange(-past, num_new, device=device))[:, None]
        distance = positions[:, :, None] - key_positions
        visible = (distance >= 0) & (distance <= past) & (key_positions >= 0)
        mask = torch.zeros_like(visible, dtype=hidden.dtype).masked_fill_(~visible, torch.finfo(hidden.dtype).min)
        replaced = {"past_key_values": self._window, "position_ids": positions, "attention_mask": mask[:, None]}
        return args, {**kwargs, **replaced}


class KeyValueCache:
    """Keys and values of a batch with the interface of transformers' cache.

    `past` are those of each layer, (batch, 2, num_heads, length, head_dim), and `kept` are those after a call, of the
    last `length` positions, or of all. Before the first call there are zeros, if there is a length.
    """

    def __init__(self, past: list[torch.Tensor], length: int = 0) -> None:
        self._past, self._length = past, length
        self.kept: list[torch.Tensor] = []
        self.num_new = 0

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values (batch, num_heads, length, head_dim) of past and new positions."""
        new = torch.stack([keys, values], dim=1)
        self.num_new = new.shape[-2]
        past = self._past[layer_idx] if self._past else new.new_zeros((*new.shape[:-2], self._length, new.shape[-1]))
        both = torch.cat([past, new], dim=-2)
        self.kept.append(both[..., -self._length :, :].contiguous())
        return both[:, 0], both[:, 1]


class StreamingCodecDecoder:
    """A causal codec decoder of transformers whose codes may come in pieces."""

    def __init__(self, module: nn.Module, max_frames_per_call: int = MAX_FRAMES_PER_CALL) -> None:
        """Raise `ValueError` if `module` has parts that cannot be decoded piece by piece."""
        self.max_frames_per_call = max_frames_per_call
        self.call = DecoderCall(module)
        self.counters = ExecutionCounters()
        self._lengths: dict[bool, list[int]] = {True: [], False: []}
        self._sizes: list[int] = []
        self._graphs: Callable[..., Any] | None = None

    @torch.inference_mode()
    def use_graphs(
        self, backend: GraphBackend, *, stage: str, sizes: Sequence[int], whole: int, example: torch.Tensor
    ) -> None:
        """Replay the calls for a stream's pieces, of these numbers of frames in turn, and for any piece of `whole`.

        A request's last piece is padded to the next of them. `example` (max_batch, num_codebooks, 1) are any codes. The
        graphs of a stream are captured now for all numbers of requests in a call, those of `whole` on first use. On
        a CUDA device, code2wav's convolutions run as kernels from now on.
        """
        if example.is_cuda:
            self.call.use_kernels()
        self._lengths = {True: sorted({sizes[0], whole}), False: sorted({*sizes[1:], whole})}
        self._sizes = batch_sizes(len(example))
        num_graphs = sum(map(len, self._lengths.values())) * len(self._sizes)
        self._graphs = GraphManager(
            self.call, backend, stage=stage, device=example.device, counters=self.counters, max_graphs=num_graphs
        )
        for size in self._sizes:
            states = [DecoderState() for _ in range(size)]
            for length in sizes:
                pieces = [Piece(row.expand(-1, length), state) for row, state in zip(example, states, strict=False)]
                self.decode(pieces)

    @torch.inference_mode()
    def decode(self, pieces: Sequence[Piece]) -> list[torch.Tensor]:
        """Return samples (num_samples,) of each piece, in the module's dtype and on its device, and update the states.

        Where `is_alone` is not, pieces of equal length share a call, first pieces separately. A request may occur once.
        """
        groups: dict[tuple[int, bool, int], list[int]] = defaultdict(list)
        for index, piece in enumerate(pieces):
            own = index if self._graphs is None and is_alone(piece.codes) else -1
            groups[self._length(piece), piece.is_first, own].append(index)
        waveforms: dict[int, torch.Tensor] = {}
        for (num_frames, _, _), indices in groups.items():
            num_together = min(max(1, self.max_frames_per_call // num_frames), *self._sizes[:1], len(pieces))
            for begin in range(0, len(indices), num_together):
                together = indices[begin : begin + num_together]
                decoded = self._decode_equal([pieces[index] for index in together], num_frames)
                waveforms.update(zip(together, decoded, strict=True))
        return [waveforms[index] for index in range(len(pieces))]

    def _length(self, piece: Piece) -> int:
        """Return the number of frames to decode: a last piece may be padded to share a graph."""
        num_frames = piece.codes.shape[-1]
        longer = [length for length in self._lengths[piece.is_first] if length >= num_frames]
        return min(longer) if piece.is_last and longer else num_frames

    def _decode_equal(self, pieces: Sequence[Piece], num_frames: int) -> list[torch.Tensor]:
        """Return samples of pieces which are all first or all later ones, each decoded as `num_frames` frames."""
        missing = [num_frames - piece.codes.shape[-1] for piece in pieces]
        codes = torch.stack(
            [nn.functional.pad(piece.codes, (0, count)) for piece, count in zip(pieces, missing, strict=True)]
        )
        states = [piece.state for piece in pieces]
        samples = torch.cat([self._advance(part, states) for part in codes.split(self.max_frames_per_call, -1)], -1)
        ends = (samples.shape[-1] - count * self.call.samples_per_frame if count else None for count in missing)
        return [row[:end] for row, end in zip(samples, ends, strict=False)]

    def _advance(self, codes: torch.Tensor, states: list[DecoderState]) -> torch.Tensor:
        """Run one call, which may have more rows than states, return its samples and update the states."""
        first, num_frames = states[0], codes.shape[-1]
        replays = self._graphs is not None and num_frames in self._lengths[first.num_positions == 0]
        # A graph of more requests gets copies of the last row.
        spare = min(size for size in self._sizes if size >= len(states)) - len(states) if replays else 0
        rows = [*states, *[states[-1]] * spare]
        if spare:
            codes = torch.cat([codes, codes[-1:].expand(spare, -1, -1)])
        contexts = {index: _join_rows([row.contexts[index] for row in rows]) for index in first.contexts}
        keys_values = [_join_rows([*pairs]) for pairs in zip(*(row.keys_values for row in rows), strict=True)]
        starts = torch.tensor([row.num_positions for row in rows])
        if replays and self._graphs is not None:
            samples, contexts, keys_values = self._graphs(codes, starts, contexts, keys_values)
        else:
            self.counters.eager_calls += 1
            samples, contexts, keys_values = self.call(codes, starts, contexts, keys_values)
        for row, state in enumerate(states):
            state.contexts = {index: context[row : row + 1] for index, context in contexts.items()}
            state.keys_values = [pair[row : row + 1] for pair in keys_values]
            state.num_positions += num_frames * self.call.positions_per_frame
        advanced: torch.Tensor = samples
        return advanced


def is_alone(codes: torch.Tensor) -> bool:
    """True on a CPU, where a library sums in another order for two rows than for one: no request may see the others.

    A call of several would save little there.
    """
    return bool(codes.device.type == "cpu")


def _join_rows(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat(rows) if len(rows) > 1 else rows[0]


def _causal_convolutions(decoder: nn.Module) -> list[nn.Module]:
    """Return the modules that pad their own convolution `conv`; `ValueError` if one looks ahead or is unknown."""
    convolutions, inner = [], set()
    for module in decoder.modules():
        conv = getattr(module, "conv", None)
        if isinstance(conv, nn.Conv1d | nn.ConvTranspose1d):
            convolutions.append(module)
            inner.add(conv)
            (kernel,), (stride,) = conv.kernel_size, conv.stride
            settings = [getattr(module, name, value) for name, value in _CAUSAL.items()]
            whole = kernel <= 2 * stride if isinstance(conv, nn.ConvTranspose1d) else stride == 1
            if settings != list(_CAUSAL.values()) or not whole:
                raise ValueError(f"cannot decode piece by piece: {module} is not causal")
    others = [part for part in decoder.modules() if isinstance(part, nn.Conv1d | nn.ConvTranspose1d)]
    if any(part not in inner and part.kernel_size != (1,) for part in others):
        raise ValueError(f"cannot decode piece by piece: a convolution of {type(decoder).__name__} pads nothing")
    return convolutions


# Settings of Mimi's convolutions with which no output depends on a later input, and zeros precede the first.
_CAUSAL = {"causal": True, "pad_mode": "constant", "trim_right_ratio": 1.0}


# Keys of a state's contexts: the latest codes (num_codebooks, num_frames), and those of `RowDecoder`.
_CODES, _ROWS = 0, -1


class LookaheadDecoder:
    """A decoder with the interface of `StreamingCodecDecoder`, without CUDA graphs.

    `call` returns samples (batch, num_samples) of codes (batch, num_codebooks, num_frames), `samples_per_frame` each.
    """

    def __init__(
        self, convolutions: nn.Module, call: Callable[[torch.Tensor], torch.Tensor], samples_per_frame: int
    ) -> None:
        self.reach = frames_in_reach(convolutions)
        self.counters = ExecutionCounters()
        self._call, self._samples_per_frame = call, samples_per_frame

    @torch.inference_mode()
    def decode(self, pieces: Sequence[Piece]) -> list[torch.Tensor]:
        """Return the samples (num_samples,) of each piece that are known with it; a piece may have none."""
        windows = [self._window(piece) for piece in pieces]
        waveforms = [codes.new_zeros(0, dtype=torch.float32) for codes, _ in windows]
        groups: dict[tuple[int, int], list[int]] = defaultdict(list)
        for index, (codes, wanted) in enumerate(windows):
            if wanted:
                groups[codes.shape[-1], index if is_alone(codes) else -1].append(index)
        for together in groups.values():
            self.counters.eager_calls += 1
            samples = self._call(torch.stack([windows[index][0] for index in together]))
            for index, row in zip(together, samples, strict=True):
                wanted, size = windows[index][1], self._samples_per_frame
                waveforms[index] = row[wanted.start * size : wanted.stop * size]
        return waveforms

    def _window(self, piece: Piece) -> tuple[torch.Tensor, range]:
        """Return the codes to decode, and which of their frames are wanted; keep what the next piece needs."""
        state = piece.state
        codes = piece.codes if piece.is_first else torch.cat([state.contexts[_CODES], piece.codes], dim=-1)
        num_before = state.num_positions
        state.num_positions += piece.codes.shape[-1]
        first = state.num_positions - codes.shape[-1]
        begin = max(0, num_before - self.reach)
        end = state.num_positions if piece.is_last else max(0, state.num_positions - self.reach)
        state.contexts = {_CODES: codes[:, max(0, end - self.reach - first) :]}
        return codes, range(begin - first, end - first)


def frames_in_reach(convolutions: nn.Module) -> int:
    """Return how many frames away a frame can be that changes a sample, on either side.

    `convolutions` registers its modules in the order in which they run; each keeps the length or multiplies it.
    """
    reach, rate = 0.0, 1
    for module in convolutions.modules():
        if isinstance(module, nn.ConvTranspose1d):
            (kernel,), (stride,) = module.kernel_size, module.stride
            reach += math.ceil(kernel / stride) / rate
            rate *= stride
        elif isinstance(module, nn.Conv1d):
            (kernel,), (dilation,) = module.kernel_size, module.dilation
            reach += (kernel - 1) // 2 * dilation / rate
    return math.ceil(reach)
