"""Codes decoded piece by piece give the samples of whole-sequence decoding, for any pieces and batches."""

from __future__ import annotations

import random
from copy import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fake_graphs import FakeBackend
from torch import nn
from transformers import MimiConfig, MimiModel
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeCode2WavConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from omni_cli.models.codec.streaming import DecoderState, Piece, StreamingCodecDecoder

CODEBOOK_SIZE, NUM_CODEBOOKS = 64, 4
MAX_FRAMES = 24


def code2wav() -> nn.Module:
    """Qwen3-Omni's code2wav, narrow: a sliding window of 6 frames, the release's upsampling by 1,920."""
    config = Qwen3OmniMoeCode2WavConfig(
        codebook_size=CODEBOOK_SIZE,
        num_quantizers=NUM_CODEBOOKS,
        hidden_size=32,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=6,
        intermediate_size=64,
        num_hidden_layers=2,
        decoder_dim=16,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    return Qwen3OmniMoeCode2Wav(config)


def mimi() -> nn.Module:
    """Mimi, narrow: a sliding window of 10 positions, two of which are a frame."""
    config = MimiConfig(
        codebook_size=CODEBOOK_SIZE,
        num_quantizers=NUM_CODEBOOKS,
        hidden_size=32,
        num_filters=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        sliding_window=10,
        intermediate_size=64,
        num_hidden_layers=2,
        codebook_dim=16,
        vector_quantization_hidden_dimension=16,
        upsample_groups=32,
    )
    return MimiModel(config)


class Case:
    """A codec with random weights, and its samples of random codes in one call."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module.eval()
        with torch.no_grad():
            generator = torch.Generator().manual_seed(0)
            for tensor in module.state_dict().values():
                if tensor.is_floating_point() and tensor.ndim > 1:
                    tensor.normal_(0.0, 0.5 * tensor[0].numel() ** -0.5, generator=generator)
                elif tensor.is_floating_point() and tensor.ndim == 1:
                    tensor.add_(torch.randn(tensor.shape, generator=generator) * 0.3)
        self.codes = torch.randint(CODEBOOK_SIZE, (8, NUM_CODEBOOKS, MAX_FRAMES), generator=generator)
        self.decoder = StreamingCodecDecoder(self.module)

    def whole(self, codes: torch.Tensor) -> torch.Tensor:
        """Return the samples of one request's codes by transformers alone."""
        with torch.no_grad():
            if isinstance(self.module, MimiModel):
                return self.module.decode(codes[None]).audio_values[0, 0]
            return self.module(codes[None])[0, 0]


@pytest.fixture(scope="module", params=[code2wav, mimi], ids=["code2wav", "mimi"])
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param())


def assert_equal(streamed: torch.Tensor, whole: torch.Tensor) -> None:
    assert streamed.shape == whole.shape
    assert whole.abs().max() > 0.01
    assert float((streamed - whole).abs().max() / whole.abs().max()) < 1e-5


def test_pieces_without_their_past_differ(case: Case) -> None:
    """Premise of the other tests."""
    whole = case.whole(case.codes[0])
    second = case.decoder.decode([Piece(case.codes[0, :, 14:], DecoderState())])[0]
    start = whole[-len(second) :][:1920] - second[:1920]
    assert start.abs().max() / whole.abs().max() > 0.05


cuts = st.lists(st.integers(1, MAX_FRAMES), min_size=1, max_size=12)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(cuts=cuts)
def test_every_cut_gives_the_samples_of_one_call(case: Case, cuts: list[int]) -> None:
    state, streamed, begin = DecoderState(), [], 0
    for num_frames in cuts:
        codes = case.codes[0, :, begin : begin + num_frames]
        if codes.shape[-1]:
            streamed += case.decoder.decode([Piece(codes, state)])
        begin += num_frames
    assert_equal(torch.cat(streamed), case.whole(case.codes[0, :, :begin]))


@pytest.mark.parametrize("seed", range(2))
def test_requests_in_one_batch_do_not_meet(case: Case, seed: int) -> None:
    """Eight requests at different positions, each with the very samples that it has alone."""
    draw = random.Random(seed)
    states = [DecoderState() for _ in range(8)]
    streamed: list[list[torch.Tensor]] = [[] for _ in states]
    places = [0] * 8
    while min(places) < 14:
        lengths = draw.choices([0, 1, 3, 6], k=8)
        rows = [row for row in range(8) if lengths[row] and places[row] + lengths[row] <= MAX_FRAMES]
        pieces = [Piece(case.codes[row, :, places[row] : places[row] + lengths[row]], states[row]) for row in rows]
        apart = [Piece(piece.codes, copy(piece.state)) for piece in pieces]
        expected = [case.decoder.decode([piece])[0] for piece in apart]
        for row, samples, alone in zip(rows, case.decoder.decode(pieces), expected, strict=True):
            assert torch.equal(samples, alone)
            streamed[row].append(samples)
            places[row] += lengths[row]
    for row, place in enumerate(places):
        assert_equal(torch.cat(streamed[row]), case.whole(case.codes[row, :, :place]))


def test_long_pieces_are_split(case: Case) -> None:
    sizes: list[torch.Size] = []
    decoder = StreamingCodecDecoder(case.module, max_frames_per_call=10)
    call = decoder.call._call

    def noted(codes: torch.Tensor) -> torch.Tensor:
        sizes.append(codes.shape)
        return call(codes)

    decoder.call._call = noted
    pieces = [Piece(codes, DecoderState()) for codes in [*case.codes[:2], *case.codes[3:, :, :7]]]
    for piece, samples in zip(pieces, decoder.decode(pieces), strict=True):
        assert_equal(samples, case.whole(piece.codes))
    assert [(size[0], size[-1]) for size in sizes] == [(1, 10), (1, 10), (1, 4)] * 2 + [(1, 7)] * 5


def test_replayed_calls_give_the_samples_of_one_call() -> None:
    """Pieces of 1, 2 and then 4 frames; a shorter last piece is padded, and so is a batch of three."""
    case = Case(code2wav())
    decoder, backend = StreamingCodecDecoder(case.module), FakeBackend()
    decoder.use_graphs(backend, stage="code2wav", sizes=(1, 2, 4), whole=12, example=case.codes[:4, :, :1])
    assert len(backend.graphs) == decoder.counters.graphs_captured == 9  # of 4, 2 and 1 requests, of each size
    ends = (2, 10, 15)
    states = [DecoderState() for _ in ends]
    streamed: list[list[torch.Tensor]] = [[] for _ in ends]
    for begin, end in ((0, 1), (1, 3), (3, 7), (7, 11), (11, 15)):
        rows = [row for row, last in enumerate(ends) if last > begin]
        pieces = [Piece(case.codes[row, :, begin : min(end, ends[row])], states[row], ends[row] <= end) for row in rows]
        for row, samples in zip(rows, decoder.decode(pieces), strict=True):
            streamed[row].append(samples)
    for row, end in enumerate(ends):
        assert_equal(torch.cat(streamed[row]), case.whole(case.codes[row, :, :end]))
    assert len(backend.graphs) == 9 and decoder.counters.eager_calls == 0
    # A long piece, whose graph is captured when it comes, and one of which more follows, for which there is none.
    (samples,) = decoder.decode([Piece(case.codes[3, :, :9], DecoderState(), is_last=True)])
    assert_equal(samples, case.whole(case.codes[3, :, :9]))
    decoder.decode([Piece(case.codes[3, :, :9], DecoderState())])
    assert len(backend.graphs) == 10 and decoder.counters.eager_calls == 1


def test_no_graph_is_captured_for_more_frames_than_a_call_has() -> None:
    case = Case(code2wav())
    decoder, backend = StreamingCodecDecoder(case.module, max_frames_per_call=8), FakeBackend()
    decoder.use_graphs(backend, stage="code2wav", sizes=(8, 2, 4), whole=8, example=case.codes[:4, :, :1])
    assert len(backend.graphs) == 1 + 3 + 2
    states, streamed = [DecoderState() for _ in range(4)], []
    for begin, end in ((0, 8), (8, 10), (10, 14)):
        pieces = [Piece(row[:, begin:end], state) for row, state in zip(case.codes[:4], states, strict=True)]
        streamed.append(decoder.decode(pieces))
    for codes, *pieces in zip(case.codes[:4], *streamed, strict=True):
        assert_equal(torch.cat(pieces), case.whole(codes[:, :14]))
    assert len(backend.graphs) == 6 and decoder.counters.eager_calls == 0


def test_the_memory_of_a_request_does_not_grow(case: Case) -> None:
    def num_values() -> int:
        return sum(tensor.numel() for tensor in [*state.contexts.values(), *state.keys_values])

    state = DecoderState()
    case.decoder.decode([Piece(case.codes[0, :, :1], state)])
    first = num_values()
    case.decoder.decode([Piece(case.codes[0, :, 1:], state)])
    assert num_values() == first > 0


def test_codes_without_a_frame_are_refused(case: Case) -> None:
    with pytest.raises(ValueError, match=r"\(4, 0\) instead of \(num_codebooks, num_frames\)"):
        Piece(case.codes[0, :, :0], DecoderState())


@pytest.mark.parametrize("key", ["use_causal_conv", "pad_mode", "trim_right_ratio"])
def test_a_codec_that_looks_ahead_is_refused(key: str) -> None:
    module = mimi()
    config = module.config
    setattr(config, key, {"use_causal_conv": False, "pad_mode": "replicate", "trim_right_ratio": 0.5}[key])
    with pytest.raises(ValueError, match="not causal"):
        StreamingCodecDecoder(MimiModel(config))
