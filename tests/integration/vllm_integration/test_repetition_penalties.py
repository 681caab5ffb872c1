"""Repetition penalties that stay on the device, against vLLM's own in the same steps."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from vllm import SamplingParams
from vllm.model_executor.layers.utils import apply_penalties

from omni_cli.vllm_integration.repetition_penalties import RepetitionPenalties

VOCABULARY = 50
PENALTIES = (1.0, 1.05, 1.4, 0.8)


@pytest.mark.parametrize("seed", range(5))
def test_logits_are_vllms_while_requests_come_return_move_and_end(seed):
    rng, torch_rng = random.Random(seed), torch.Generator().manual_seed(seed)
    ours = RepetitionPenalties(4, torch.device("cpu"))
    requests: dict[str, Any] = {}
    penalty: dict[str, float] = {}
    batch: list[str] = []
    for step in range(200):
        if len(requests) < 8:
            name = str(step)
            penalty[name] = rng.choice(PENALTIES)
            left = ours.begin(name, SamplingParams(repetition_penalty=penalty[name]))
            assert left is not None and left.repetition_penalty == 1
            prompt = rng.choices(range(VOCABULARY), k=rng.randrange(1, 9))
            requests[name] = SimpleNamespace(prompt_token_ids=prompt, output_token_ids=[])
        if rng.random() < 0.3:  # some leave, as the preempted do, and some return
            batch = rng.sample(sorted(requests), k=min(len(requests), rng.randrange(1, 5)))
        batch = batch or sorted(requests)[:1]
        logits = torch.randn(len(batch), VOCABULARY, generator=torch_rng)
        expected = apply_penalties(
            logits.clone(),
            padded([requests[name].prompt_token_ids for name in batch]),
            padded([requests[name].output_token_ids for name in batch]),
            *torch.zeros(2, len(batch)),
            torch.tensor([penalty[name] for name in batch]),
        )

        ours.use(batch, requests, VOCABULARY)
        ours.apply(logits)
        sampled = torch.randint(VOCABULARY, (len(batch),), generator=torch_rng, dtype=torch.int32)
        is_discarded = np.array([rng.random() < 0.2 for _ in batch])
        ours.note(sampled[:, None], np.append(is_discarded, True))

        torch.testing.assert_close(logits, expected, atol=0, rtol=0)
        for name, token, discarded in zip(batch, sampled.tolist(), is_discarded, strict=True):
            if not discarded:
                requests[name].output_token_ids.append(token)
        if rng.random() < 0.2:
            name = rng.choice(sorted(requests))
            ours.forget(name)
            batch = [other for other in batch if other != name]
            del requests[name]


def padded(tokens: list[list[int]]) -> torch.Tensor:
    length = max(map(len, tokens))
    return torch.tensor([ids + [VOCABULARY] * (length - len(ids)) for ids in tokens], dtype=torch.int64)


def test_a_request_that_counts_tokens_is_vllms():
    ours = RepetitionPenalties(4, torch.device("cpu"))
    for fields in ({"frequency_penalty": 0.5}, {"presence_penalty": -0.5}):
        params = SamplingParams(repetition_penalty=1.3, **fields)
        assert ours.begin("0", params) is params and params.repetition_penalty == 1.3


def test_a_prompt_that_grows_under_the_same_name_is_read_again():
    ours = RepetitionPenalties(4, torch.device("cpu"))
    for tokens in ([1], [1, 2]):
        ours.begin("0", SamplingParams(repetition_penalty=2.0))
        ours.use(["0"], {"0": SimpleNamespace(prompt_token_ids=tokens, output_token_ids=[])}, VOCABULARY)
        logits = torch.ones(1, VOCABULARY)
        ours.apply(logits)
        assert (logits[0] == 0.5).nonzero().flatten().tolist() == tokens
