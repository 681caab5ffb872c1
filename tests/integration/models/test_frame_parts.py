"""A talker sends its frames as soon as they fill a chunk of its codec, which decodes first chunks before others."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from omni_cli.backends.execution.ranges import Clock
from omni_cli.backends.vllm.diffusion_runner import NOT_FINISHED, DiffusionInput
from omni_cli.models.codec.decoder_stage import SOON_S, CodecForDiffusion, CodecStage, CodeStream
from omni_cli.models.codec.frame_stage import CODES, FrameStage
from omni_cli.models.codec.settings import CodecConfig
from omni_cli.requests.contents import SpeechOptions
from omni_cli.requests.outputs import GenerateRequest
from omni_cli.stage.payloads import PayloadLimits, decode_additional_information, get_tensor
from omni_cli.stage.request_payloads import ADDITIONAL_INFORMATION


def sent_parts(next_stage: CodecConfig | None, num_tokens: int) -> list[tuple[int, int]]:
    """Return, of each part that a talker sends for its codec, after which token, and how many frames."""
    stage: Any = FrameStage.__new__(FrameStage)
    stage.spec, stage.num_codebooks = SimpleNamespace(next_stage=next_stage), 2
    active: Any = SimpleNamespace(token_ids=[], context={"codes": []})
    parts, frames = [], list[int]()
    for token in range(num_tokens):
        active.token_ids.append(token)
        active.context["codes"].append(torch.tensor([token, 0]))
        active.context["finished"] = token + 1 == num_tokens
        part = stage.partial_output(active, SimpleNamespace(finished=active.context["finished"]))
        if part is not None:
            codes = get_tensor(decode_additional_information(part, PayloadLimits()), CODES, num_dims=2)
            frames += codes[:, 0].tolist()
            parts.append((token + 1, len(codes)))
    assert frames == list(range(num_tokens - 1))
    return parts


def test_a_part_is_sent_with_the_frame_that_fills_a_chunk_and_the_last_token_is_not_spoken() -> None:
    codec = CodecConfig.create("codec")
    assert sent_parts(codec, 14) == [(1, 1), (3, 2), (7, 4), (11, 4), (14, 2)]
    assert sent_parts(codec, 12) == [(1, 1), (3, 2), (7, 4), (11, 4), (12, 0)]
    assert sent_parts(codec, 1) == [(1, 0)]
    four = CodecConfig.create("codec", stream_first_chunk_frames=4)
    assert sent_parts(four, 10) == sent_parts(None, 10) == [(4, 4), (8, 4), (10, 1)]
    # Of 6 and 12 frames, and of 3, 6 and 12.
    six = CodecConfig.create("codec", stream_first_chunk_frames=6)
    assert sent_parts(six, 25) == [(4, 4), (6, 2), (10, 4), (14, 4), (18, 4), (22, 4), (25, 2)]
    three = CodecConfig.create("codec", stream_first_chunk_frames=3)
    assert sent_parts(three, 16) == [(3, 3), (7, 4), (9, 2), (13, 4), (16, 2)]


def test_first_chunks_are_decoded_before_the_others_which_wait_once() -> None:
    model: Any = CodecForDiffusion.__new__(CodecForDiffusion)
    torch.nn.Module.__init__(model)
    model._states, model._postponed, model._clock = {}, set(), Clock()
    model._decoder = SimpleNamespace(decode=lambda pieces: [piece.codes[0] for piece in pieces])

    def step(**pieces: bool) -> dict[str, list[float] | None]:
        """Return by piece what it made, None if it waits; a piece is urgent or not."""
        inputs = []
        for number, (name, is_urgent) in enumerate(pieces.items()):
            codes = torch.full((2, 1), number)
            information = {CODES: codes, "stream": [name], "is_last": [0], "is_urgent": [int(is_urgent)]}
            inputs.append(DiffusionInput(name, torch.zeros(1), information))
        made = model.sample(inputs)
        assert made.keys() == pieces.keys()
        return {name: None if made[name] is NOT_FINISHED else made[name].tolist() for name in pieces}

    assert step(a=False, b=False) == {"a": [0.0], "b": [1.0]}
    assert step(a=False, b=True, c=False) == {"a": None, "b": [1.0], "c": None}
    assert step(a=False, c=False, d=True, e=False) == {"a": [0.0], "c": [1.0], "d": [2.0], "e": None}
    assert step(e=False, f=True, g=True) == {"e": [0.0], "f": [1.0], "g": [2.0]}
    assert step(a=False, h=True) == {"a": None, "h": [1.0]}
    assert step(a=False) == {"a": [0.0]}


@pytest.mark.parametrize(
    ("streamed", "ahead_s", "urgent"),
    [(True, None, 1), (True, SOON_S / 2, 1), (True, -1.0, 1), (True, SOON_S + 5.0, 0), (False, None, 0)],
)
def test_a_stream_is_urgent_before_its_first_chunk_and_when_its_sound_soon_ends(
    streamed: bool, ahead_s: float | None, urgent: int
) -> None:
    stage: Any = CodecStage.__new__(CodecStage)
    stage.payload_limits = PayloadLimits()
    request = GenerateRequest("one", speech=SpeechOptions(stream_audio=streamed))
    stream = CodeStream(request, 0.0, torch.zeros((2, 0)), has_all_codes=True)
    if ahead_s is not None:
        stream.heard_until_s = time.perf_counter() + ahead_s
    codes = torch.zeros((2, 1), dtype=torch.long)
    _, params = stage.render(SimpleNamespace(context={"stream": stream, "codes": codes}))
    information = decode_additional_information(params.extra_kwargs[ADDITIONAL_INFORMATION], PayloadLimits())
    assert (information["is_urgent"], information["is_last"]) == ([urgent], [1])


@pytest.mark.parametrize("late_s", [0.0, 5.0])
def test_a_stream_whose_sound_came_late_is_heard_from_then_on(late_s: float) -> None:
    stage: Any = CodecStage.__new__(CodecStage)
    stage.stage, stage._whole_piece = CodecConfig.create("codec"), 256
    stage.model = SimpleNamespace(latest_s=0.0, sample_rate=24_000, reach=0)
    stream = CodeStream(GenerateRequest("one", speech=SpeechOptions(stream_audio=True)), 0.0, torch.zeros((2, 0)))
    began_s = time.perf_counter()
    stream.heard_until_s = began_s - late_s
    active = SimpleNamespace(context={"stream": stream, "codes": torch.zeros((2, 4))})
    (chunk,) = stage.output(active, SimpleNamespace(outputs=SimpleNamespace(data=torch.zeros(48_000))))
    assert len(chunk.samples) == 48_000
    assert 2.0 <= stream.heard_until_s - began_s <= 2.0 + time.perf_counter() - began_s


@pytest.mark.parametrize(("reach", "num_before", "first"), [(0, 0, 1), (0, 5, 6), (12, 0, 13)])
def test_a_first_chunk_is_one_piece_with_the_frames_that_are_not_heard_and_those_after_it(
    reach: int, num_before: int, first: int
) -> None:
    stage: Any = CodecStage.__new__(CodecStage)
    stage.stage, stage._whole_piece = CodecConfig.create("codec"), 256
    stage.model, sizes = SimpleNamespace(reach=reach), list[int]()
    stage.admit = lambda active: sizes.append(active.context["codes"].shape[1])
    request = GenerateRequest("one", speech=SpeechOptions(stream_audio=True))
    stream = CodeStream(request, 0.0, torch.zeros((2, 40)), num_before=num_before)
    for stream.num_chunks in range(4):
        stream.num_decoded, stream.is_decoding = sum(sizes), False
        stage._next_piece(stream)
    assert sizes == [first, 2, 4, 12]
