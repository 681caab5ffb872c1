"""Decode codec codes piece by piece, with the samples of whole-sequence decoding.

`StreamingCodecDecoder` runs transformers' own modules. Hooks on their causal convolutions prepend the inputs that the
receptive field still needs and drop the outputs that were already returned; the attention reads keys and values of its
sliding window from a cache. So every sample is computed from the same values as in one call on all codes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers import MimiModel
from transformers.cache_utils import Cache, DynamicSlidingWindowLayer

# Frames in one call, all requests together: longer pieces are split, which bounds the memory and changes no sample.
MAX_FRAMES_PER_CALL = 1024


@dataclass
class DecoderState:
    """State of one request between pieces; empty before the first piece."""

    # Per convolution with memory: its last inputs (1, in_channels, context_length).
    contexts: dict[int, torch.Tensor] = field(default_factory=dict)
    # Per attention layer: keys and values (2, num_key_value_heads, sliding_window - 1, head_dim).
    keys_values: list[torch.Tensor] = field(default_factory=list)
    num_positions: int = 0


@dataclass(frozen=True)
class Piece:
    """The next codes of one request, int64 (num_codebooks, num_frames), at least one frame."""

    codes: torch.Tensor
    state: DecoderState

    def __post_init__(self) -> None:
        if self.codes.ndim != 2 or self.codes.shape[-1] == 0:
            raise ValueError(f"codes are of shape {tuple(self.codes.shape)} instead of (num_codebooks, num_frames)")


class StreamingCodecDecoder:
    """A causal codec decoder of transformers whose codes may come in pieces.

    The module itself is not changed: outside of `decode` it decodes whole sequences as before.
    """

    def __init__(self, module: nn.Module, max_frames_per_call: int = MAX_FRAMES_PER_CALL) -> None:
        """Raise ValueError if `module` has parts that cannot be decoded piece by piece."""
        self.max_frames_per_call = max_frames_per_call
        decoder = module.decoder if isinstance(module, MimiModel) else module
        self._call: Callable[[torch.Tensor], torch.Tensor] = (
            _mimi_decode(module) if isinstance(module, MimiModel) else module
        )
        self._batch: list[DecoderState] | None = None
        for index, each in enumerate(_causal_convolutions(decoder)):
            self._follow(each, index)
        (transformer,) = [each for each in decoder.modules() if hasattr(each, "rotary_emb")]
        self._config: Any = transformer.config
        transformer.register_forward_pre_hook(self._attend_to_the_past, with_kwargs=True)
        transformer.register_forward_hook(self._keep_keys_and_values, with_kwargs=True)

    def start(self) -> DecoderState:
        """State of a request before its first piece."""
        return DecoderState()

    @torch.inference_mode()
    def decode(self, pieces: Sequence[Piece]) -> list[torch.Tensor]:
        """Samples (num_samples,) of each piece, in the module's dtype and on its device; their states move on.

        Pieces of equal length share a call, first pieces among themselves. A request may occur once.
        """
        groups: dict[tuple[int, bool], list[int]] = defaultdict(list)
        for index, piece in enumerate(pieces):
            groups[piece.codes.shape[-1], piece.state.num_positions == 0].append(index)
        waveforms: dict[int, torch.Tensor] = {}
        for (num_frames, _), indices in groups.items():
            num_together = max(1, self.max_frames_per_call // num_frames)
            for begin in range(0, len(indices), num_together):
                together = indices[begin : begin + num_together]
                decoded = self._decode_equal([pieces[index] for index in together])
                waveforms.update(zip(together, decoded, strict=True))
        return [waveforms[index] for index in range(len(pieces))]

    def _decode_equal(self, pieces: Sequence[Piece]) -> torch.Tensor:
        codes = torch.stack([piece.codes for piece in pieces])
        self._batch = [piece.state for piece in pieces]
        try:
            samples = torch.cat([self._call(part)[:, 0] for part in codes.split(self.max_frames_per_call, -1)], -1)
        finally:
            self._batch = None
        return samples

    def _follow(self, module: nn.Module, index: int) -> None:
        """Have a causal convolution continue where the request's last piece ended."""
        conv: Any = module.conv
        transposed = isinstance(conv, nn.ConvTranspose1d)
        (kernel,), (stride,), (dilation,) = conv.kernel_size, conv.stride, conv.dilation
        length = -(-(kernel - stride) // stride) if transposed else (kernel - 1) * dilation
        if length == 0:
            return
        upsampling = stride if transposed else 1

        def prepend(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
            if self._batch is None:
                return None
            hidden, *others = args
            if index in self._batch[0].contexts:
                hidden = torch.cat([torch.cat([state.contexts[index] for state in self._batch]), hidden], -1)
            return (hidden, *others)

        def trim(_: nn.Module, args: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor | None:
            if self._batch is None:
                return None
            hidden = args[0]
            # Zeros before a request's first input are what the module pads with.
            kept = nn.functional.pad(hidden[..., -length:], (max(0, length - hidden.shape[-1]), 0)).clone()
            first = index not in self._batch[0].contexts
            for state, context in zip(self._batch, kept.split(1), strict=True):
                state.contexts[index] = context
            return output if first else output[..., -(hidden.shape[-1] - length) * upsampling :]

        module.register_forward_pre_hook(prepend)
        module.register_forward_hook(trim)

    def _attend_to_the_past(
        self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Give the transformer the requests' keys and values, positions, and the mask that fits them."""
        if self._batch is None:
            return None
        hidden = args[0] if args else kwargs["inputs_embeds"]
        past, (num_new, device) = self._config.sliding_window - 1, (hidden.shape[1], hidden.device)
        starts = torch.tensor([state.num_positions for state in self._batch], device=device)[:, None]
        positions = starts + torch.arange(num_new, device=device)
        key_positions = (starts + torch.arange(-past, num_new, device=device))[:, None]
        distance = positions[:, :, None] - key_positions
        visible = (distance >= 0) & (distance <= past) & (key_positions >= 0)
        mask = torch.zeros_like(visible, dtype=hidden.dtype).masked_fill_(~visible, torch.finfo(hidden.dtype).min)
        given = {"past_key_values": self._cache(hidden), "position_ids": positions, "attention_mask": mask[:, None]}
        return args, {**kwargs, **given}

    def _cache(self, hidden: torch.Tensor) -> Cache:
        batch, config = self._batch or [], self._config
        layers = [DynamicSlidingWindowLayer(config.sliding_window) for _ in range(config.num_hidden_layers)]
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (len(batch), config.num_key_value_heads, config.sliding_window - 1, head_dim)
        for index, layer in enumerate(layers):
            if batch[0].keys_values:
                keys, values = torch.stack([state.keys_values[index] for state in batch], 1)
            else:
                keys = values = hidden.new_zeros(shape)
            layer.update(keys, values)
        return Cache(layers=layers)

    def _keep_keys_and_values(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if self._batch is None:
            return
        layers = kwargs["past_key_values"].layers
        kept = [torch.stack([layer.keys, layer.values], 1) for layer in layers]
        for row, state in enumerate(self._batch):
            state.keys_values = [each[row] for each in kept]
            state.num_positions += output.last_hidden_state.shape[1]


def _mimi_decode(module: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    def decode(codes: torch.Tensor) -> torch.Tensor:
        samples: torch.Tensor = module.decode(codes).audio_values
        return samples

    return decode


def _causal_convolutions(decoder: nn.Module) -> list[nn.Module]:
    """Every module that pads its own convolution `conv`; ValueError if one looks ahead or is of another kind."""
    found, inner = [], set()
    for module in decoder.modules():
        conv = getattr(module, "conv", None)
        if isinstance(conv, nn.Conv1d | nn.ConvTranspose1d):
            found.append(module)
            inner.add(conv)
            (kernel,), (stride,) = conv.kernel_size, conv.stride
            settings = [getattr(module, name, value) for name, value in _CAUSAL.items()]
            whole = kernel <= 2 * stride if isinstance(conv, nn.ConvTranspose1d) else stride == 1
            if settings != list(_CAUSAL.values()) or not whole:
                raise ValueError(f"cannot decode piece by piece: {module} is not causal")
    others = [each for each in decoder.modules() if isinstance(each, nn.Conv1d | nn.ConvTranspose1d)]
    if any(each not in inner and each.kernel_size != (1,) for each in others):
        raise ValueError(f"cannot decode piece by piece: a convolution of {type(decoder).__name__} pads nothing")
    return found


# Settings of Mimi's convolutions with which no output depends on a later input, and what precedes the first is zero.
_CAUSAL = {"causal": True, "pad_mode": "constant", "trim_right_ratio": 1.0}
