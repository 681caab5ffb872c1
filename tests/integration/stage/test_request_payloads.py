"""Payloads of a vLLM request, as its workers get them."""

from __future__ import annotations

import pytest
import torch
from vllm import SamplingParams

from omni_cli.stage.payloads import DEFAULT_LIMITS, PayloadError, PayloadLimits
from omni_cli.stage.request_payloads import payload_arguments, read_request_payload

EMBEDS = torch.arange(12.0).reshape(3, 4)
INFORMATION = {"decode_embeds": torch.arange(8.0).reshape(2, 4), "tokens_without_embedding": [1]}


def read(limits: PayloadLimits = DEFAULT_LIMITS):
    params = SamplingParams(extra_args=payload_arguments(EMBEDS, INFORMATION, limits))
    return read_request_payload(params.clone(), None)


def test_the_worker_gets_the_rows_and_the_information():
    payload = read()
    rows = payload.input_embeds(0, 6, torch.device("cpu"))
    assert torch.equal(rows, torch.cat([EMBEDS, INFORMATION["decode_embeds"], rows[-1:]]))
    assert payload.tokens_without_embedding(0, 3) == 1
    assert payload.information.keys() == INFORMATION.keys()


@pytest.mark.parametrize(
    "limit",
    [{"max_payload_bytes": 40}, {"max_payload_tensor_bytes": 40}, {"max_payload_entries": 1}, {"max_payload_items": 0}],
)
def test_limits_are_checked_in_both_directions(limit):
    with pytest.raises(PayloadError) as caught:
        read(PayloadLimits(**limit))
    assert caught.value.limit == next(iter(limit))
