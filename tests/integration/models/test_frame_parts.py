"""A talker sends its frames to the codec as soon as they fill a chunk there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from omni_cli.models.codec.frame_stage import CODES, FrameStage
from omni_cli.models.codec.settings import CodecConfig
from omni_cli.stage.payloads import PayloadLimits, decode_additional_information, get_tensor


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
