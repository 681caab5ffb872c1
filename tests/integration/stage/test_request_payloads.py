"""Payloads of a vLLM request: encoded for workers in other processes, as they are for one in the same process."""

from __future__ import annotations

import pytest
import torch
from vllm import SamplingParams

from omni_cli.stage.payloads import DEFAULT_LIMITS, PayloadError, PayloadLimits
from omni_cli.stage.request_payloads import payload_arguments, read_request_payload

EMBEDS = torch.arange(12.0).reshape(3, 4)
INFORMATION = {"decode_embeds": torch.arange(8.0).reshape(2, 4), "tokens_without_embedding": [1]}


def read(same_process: bool, limits: PayloadLimits = DEFAULT_LIMITS):
    extra = payload_arguments(EMBEDS, INFORMATION, limits, same_process=same_process)
    params = SamplingParams(extra_args=extra)
    params.skip_clone = True
    return read_request_payload(params.clone(), None)


def test_both_ways_give_the_worker_the_same():
    encoded, direct = read(False), read(True)
    for payload in (encoded, direct):
        rows = payload.input_embeds(0, 6, torch.device("cpu"))
        assert torch.equal(rows, torch.cat([EMBEDS, INFORMATION["decode_embeds"], rows[-1:]]))
        assert payload.tokens_without_embedding(0, 3) == 1
    assert encoded.information.keys() == direct.information.keys()


def test_in_the_same_process_nothing_is_copied():
    assert read(True).prompt_embeds.data_ptr() == EMBEDS.data_ptr()
    assert read(False).prompt_embeds.data_ptr() != EMBEDS.data_ptr()


@pytest.mark.parametrize("same_process", [False, True])
@pytest.mark.parametrize(
    "limit",
    [{"max_payload_bytes": 40}, {"max_payload_tensor_bytes": 40}, {"max_payload_entries": 1}, {"max_payload_items": 0}],
)
def test_limits_are_checked_in_both_directions(same_process, limit):
    with pytest.raises(PayloadError) as caught:
        read(same_process, PayloadLimits(**limit))
    assert caught.value.limit == next(iter(limit))
