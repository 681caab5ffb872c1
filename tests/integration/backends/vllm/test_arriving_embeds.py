"""Input embeddings that arrive in parts equal those that arrive together."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from omni_cli.stage.request_payloads import MORE_EMBEDS_FOLLOW, RequestPayload

CPU = torch.device("cpu")
NUM_PROMPT, SIZE = 5, 3


def payload(tail: torch.Tensor, *, more_follow: bool) -> RequestPayload:
    information = {"decode_embeds": tail, MORE_EMBEDS_FOLLOW: [int(more_follow)]}
    return RequestPayload(prompt_embeds=rows(0, NUM_PROMPT), information=information)


def rows(start: int, end: int) -> torch.Tensor:
    """Each row is identifiable."""
    return torch.arange(start, end, dtype=torch.float32)[:, None].expand(-1, SIZE).contiguous()


@given(st.lists(st.tuples(st.integers(0, 7), st.booleans()), min_size=1, max_size=12))
def test_parts_are_read_as_the_whole(parts: list[tuple[int, bool]]) -> None:
    """Independent of the reads in between, and of how often a preempted request restarts."""
    growing = payload(rows(NUM_PROMPT, NUM_PROMPT), more_follow=True)
    end = NUM_PROMPT
    for number, (length, is_read) in enumerate(parts):
        growing.append_embeds(rows(end, end + length), is_last=number == len(parts) - 1)
        end += length
        if is_read:
            assert torch.equal(growing.input_embeds(0, end, CPU), rows(0, end))
            assert torch.equal(growing.input_embeds(end - 1, 1, CPU), rows(end - 1, end))
    assert torch.equal(growing.input_embeds(0, end, CPU), rows(0, end))
    whole = payload(rows(NUM_PROMPT, end), more_follow=False)
    for start, length in [(0, end + 4), (end - 1, 3), (end + 2, 1)]:
        assert torch.equal(growing.input_embeds(start, length, CPU), whole.input_embeds(start, length, CPU))


def test_a_row_that_has_not_come_is_never_made_up() -> None:
    growing = payload(rows(NUM_PROMPT, NUM_PROMPT + 1), more_follow=True)
    assert torch.equal(growing.input_embeds(0, NUM_PROMPT + 1, CPU), rows(0, NUM_PROMPT + 1))
    with pytest.raises(RuntimeError, match="positions 6 to 6: 1 input embeddings have not arrived"):
        growing.input_embeds(NUM_PROMPT + 1, 1, CPU)
    growing.append_embeds(rows(6, 7), is_last=True)
    assert torch.equal(growing.input_embeds(6, 2, CPU), rows(6, 7).expand(2, -1))
