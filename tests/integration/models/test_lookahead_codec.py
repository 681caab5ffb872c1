"""A codec that looks ahead, decoded piece by piece; and the replacement of torchaudio where there is none."""

from __future__ import annotations

import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from omni_cli.checkpoints.resolve import resolve_model
from omni_cli.core.compat.torchvision import resample
from omni_cli.models.codec.streaming import DecoderState, LookaheadDecoder, Piece
from omni_cli.models.higgs_audio.prompts import load_tokenizer

NUM_FRAMES = 90


@pytest.fixture(scope="module")
def codec():
    return load_tokenizer(resolve_model("builtin:tiny-higgs-audio"))


@pytest.fixture(scope="module")
def codes() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(64, (8, NUM_FRAMES - 7 * index), generator=generator) for index in range(3)]


def make_decoder(codec) -> LookaheadDecoder:
    call = lambda frames: codec.decode(frames).audio_values[:, 0]  # noqa: E731 - as the model's
    return LookaheadDecoder(codec.acoustic_decoder, call, codec.config.hop_length)


def in_pieces(decoder: LookaheadDecoder, streams: list[torch.Tensor], seed: int) -> list[torch.Tensor]:
    """Decode streams together, in pieces of random lengths."""
    random = np.random.default_rng(seed)
    states = [DecoderState() for _ in streams]
    waveforms: list[list[torch.Tensor]] = [[] for _ in streams]
    waiting = list(streams)
    while any(left.shape[1] for left in waiting):
        running = [index for index, left in enumerate(waiting) if left.shape[1]]
        pieces = []
        for index in running:
            size = int(random.integers(1, 20))
            piece, waiting[index] = waiting[index][:, :size], waiting[index][:, size:]
            pieces.append(Piece(piece, states[index], is_last=not waiting[index].shape[1]))
        for index, samples in zip(running, decoder.decode(pieces), strict=True):
            waveforms[index].append(samples)
    return [torch.cat(parts) for parts in waveforms]


@torch.inference_mode()
@pytest.mark.parametrize("seed", range(3))
def test_pieces_join_to_the_whole(codec, codes, seed):
    decoder = make_decoder(codec)
    for stream, joined in zip(codes, in_pieces(decoder, codes, seed), strict=True):
        whole = codec.decode(stream[None]).audio_values[0, 0]
        assert joined.shape == whole.shape == (stream.shape[1] * 960,)
        assert float((joined - whole).abs().max()) < 1e-5 * float(whole.abs().max())


@torch.inference_mode()
def test_with_half_of_the_reach_they_do_not(codec, codes):
    decoder = make_decoder(codec)
    assert decoder.reach == 12
    decoder.reach //= 2
    whole = codec.decode(codes[0][None]).audio_values[0, 0]
    (joined,) = in_pieces(decoder, codes[:1], 0)
    assert float((joined - whole).abs().max()) > 1e-5 * float(whole.abs().max())


@pytest.mark.parametrize(("before", "after"), [(24_000, 16_000), (16_000, 24_000), (44_100, 16_000)])
def test_a_tone_is_resampled(before, after):
    times = torch.arange(4001, dtype=torch.float64)
    tone = (2 * math.pi * 1000 * times / before).sin()[None, None]
    resampled = resample(tone, before, after)
    assert resampled.shape[-1] == math.ceil(4001 * after / before)
    expected = (2 * math.pi * 1000 * torch.arange(resampled.shape[-1]) / after).sin()
    inside = slice(100, -100)
    assert float((resampled[0, 0, inside] - expected[inside]).abs().max()) < 2e-3


def test_what_is_above_the_new_rate_is_filtered():
    times = torch.arange(4000, dtype=torch.float64)
    tone = (2 * math.pi * 11_000 * times / 24_000).sin()
    assert float(resample(tone, 24_000, 16_000)[100:-100].abs().max()) < 0.02


def test_the_replacement_is_there_for_one_import(codec):
    assert not isinstance(getattr(sys.modules.get("torchaudio"), "functional", None), SimpleNamespace)
