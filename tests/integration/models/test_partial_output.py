"""A thinker's stage_output in parts yields the talker's input embeddings of a whole one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from omni_cli.models.qwen2_5_omni.connectors import PartialOutput, more_embeds, thinker_to_talker
from omni_cli.models.qwen_omni.media import ThinkerOutput

CONFIG = SimpleNamespace(
    audio_token_index=20, image_token_index=21, video_token_index=22, tts_text_end_token_id=23,
    tts_text_pad_token_id=24, tts_codec_mask_token_id=3, tts_codec_pad_token_id=1, tts_codec_start_token_id=2,
)  # fmt: skip
TEXT_BEGIN = 25
SIZE = 4
TABLE = torch.randn(32, SIZE, generator=torch.Generator().manual_seed(0))
ARGUMENTS: dict[str, Any] = {
    "config": CONFIG, "embed": lambda ids: TABLE[torch.tensor(ids, dtype=torch.long)],
}  # fmt: skip


def spoken_prompt(stage_output: ThinkerOutput, *, is_whole: bool):
    return thinker_to_talker(
        stage_output, **ARGUMENTS, text_bos_token_id=TEXT_BEGIN, talker_prompt="plain", is_whole=is_whole
    )


tokens = st.integers(0, 22)


@given(
    prompt=st.lists(tokens, min_size=1, max_size=6),
    reply=st.lists(tokens, min_size=1, max_size=8),
    # How many tokens there are each time that somebody asks; several at once is what drafting gives.
    steps=st.lists(st.integers(1, 3), max_size=8),
    has_row_of_last=st.booleans(),
)
def test_parts_make_up_the_whole(prompt, reply, steps, has_row_of_last):
    hidden = torch.randn(len(prompt) + len(reply), SIZE, generator=torch.Generator().manual_seed(1))
    whole = spoken_prompt(ThinkerOutput(prompt, reply, hidden[:-1], {}), is_whole=True)
    expected = torch.cat([whole.prompt_embeds, whole.decode_embeds])

    partial, given_rows, arrived, first = PartialOutput(), 0, [], None
    ends = [end for end in torch.tensor([0, *steps]).cumsum(0).tolist()[1:] if end < len(reply)]
    for num_tokens in [*ends, len(reply)]:
        rows_now = len(prompt) + num_tokens - 1 + has_row_of_last
        partial.add_rows(hidden[given_rows:rows_now])
        given_rows = rows_now
        is_last = num_tokens == len(reply)
        part = partial.take(prompt, reply[:num_tokens], {}, is_last=is_last)
        if part is None:
            assert num_tokens == 1 and not is_last, "only the row of the first reply token is waited for"
        elif first is None:
            first = spoken_prompt(ThinkerOutput.from_information(part), is_whole=is_last)
            arrived = [first.prompt_embeds, first.decode_embeds]
        else:
            arrived.append(more_embeds(part, **ARGUMENTS, is_last=is_last))
    assert torch.equal(torch.cat(arrived), expected)
    assert first.prompt_token_ids == whole.prompt_token_ids
    assert first.prompt_embeds.shape[0] == len(prompt) + 2, "the talker's prompt is whole from the beginning"


def test_a_lost_row_is_not_passed_over():
    partial = PartialOutput()
    partial.add_rows(torch.zeros(3, SIZE))
    with pytest.raises(ValueError, match="3 hidden-state rows for 4 positions"):
        partial.take([1, 2], [3, 4, 5], {}, is_last=True)
