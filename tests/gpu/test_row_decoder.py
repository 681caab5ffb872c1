"""code2wav's convolutions as kernels, at a release's sizes in bfloat16, from graphs, beside transformers' modules."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch
from support.code2wav import KINDS, code2wav

from omni_cli.backends.execution.cuda_graphs import CudaGraphBackend
from omni_cli.core.compat import replace_attributes
from omni_cli.models.codec.streaming import DecoderState, Piece, StreamingCodecDecoder

if torch.cuda.is_available():
    from omni_cli.models.codec.row_decoder import RowDecoder

SIZES = {
    "num_hidden_layers": 2, "codebook_size": 2048, "num_quantizers": 16, "decoder_dim": 1536, "codebook_dim": 512,
    "latent_dim": 1024,
}  # fmt: skip
ENDS = (1, 3, 7, 19, 31, 36)
ROWS = 3


@pytest.fixture(scope="module", params=list(KINDS))
def module(request):
    return code2wav(request.param, **SIZES).cuda()


def capture(module: torch.nn.Module, codes: torch.Tensor) -> StreamingCodecDecoder:
    decoder, backend = StreamingCodecDecoder(module), CudaGraphBackend(codes.device)
    decoder.use_graphs(backend, stage="code2wav", sizes=(1, 2, 4, 12), whole=36, example=codes[..., :1])
    return decoder


def streamed(decoder: StreamingCodecDecoder, codes: torch.Tensor) -> torch.Tensor:
    states, parts = [DecoderState() for _ in codes], []
    for begin, end in pairwise((0, *ENDS)):
        pieces = [Piece(row[:, begin:end], state, end == ENDS[-1]) for row, state in zip(codes, states, strict=True)]
        parts.append(torch.stack(decoder.decode(pieces)))
    return torch.cat(parts, dim=-1).float()


@torch.inference_mode()
def test_samples_are_at_least_as_near_to_float32_as_those_of_transformers_modules(module):
    codes = torch.randint(2048, (ROWS, 16, ENDS[-1]), device="cuda")
    exact = copy.deepcopy(module)(codes)[:, 0]  # a quantizer keeps its table from its first call on, in that type
    rounded = copy.deepcopy(module).bfloat16()
    modules = rounded(codes)[:, 0].float() - exact
    decoder = capture(rounded, codes)
    kernels = streamed(decoder, codes) - exact
    assert isinstance(rounded.decoder, RowDecoder) and decoder.counters.eager_calls == 0
    assert exact.abs().max() > 0.1
    assert kernels.abs().max() < 1.2 * modules.abs().max() and kernels.norm() < 1.05 * modules.norm()
    whole = torch.stack(decoder.decode([Piece(row, DecoderState(), is_last=True) for row in codes])).float() - exact
    assert whole.abs().max() < 1.2 * modules.abs().max() and whole.norm() < 1.05 * modules.norm()


@torch.inference_mode()
def test_a_row_alone_has_the_samples_that_it_has_beside_others(module):
    rounded = copy.deepcopy(module).bfloat16()
    decoder = RowDecoder(rounded.decoder, context=lambda: None, keep=lambda _: None)
    hidden = torch.randn(40, module.decoder[0].conv.in_channels, 48, device="cuda").bfloat16()
    (decode,) = decoder
    together = decode(hidden)
    # Fewer rows run smaller programs.
    assert torch.equal(torch.cat([decode(row[None]) for row in hidden]), together)


@torch.inference_mode()
def test_the_weights_are_kept_once_under_their_names(module):
    rounded = copy.deepcopy(module).bfloat16()
    # The kernels have other orders of the same memory.
    state = {name: weight.clone() for name, weight in rounded.state_dict().items()}
    codes = torch.zeros((1, 16, 1), dtype=torch.long, device="cuda")
    capture(rounded, codes)
    made = rounded.state_dict()
    assert list(made) == list(state) and all(torch.equal(made[name], weight) for name, weight in state.items())
    with replace_attributes(RowDecoder, suits=lambda _: False):
        other = copy.deepcopy(module).bfloat16()
        capture(other, codes)
    assert not isinstance(other.decoder, RowDecoder)
