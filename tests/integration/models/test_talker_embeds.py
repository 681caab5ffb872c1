"""The talker's input embeddings under CUDA graphs, which read only the addresses that they were captured with.

On a CPU there is no graph to capture, but what a graph depends on can be watched: which memory a forward pass reads
that it has not written itself.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from omni_cli.backends.vllm import input_embeds_stage
from omni_cli.models.qwen2_5_omni.stages import Qwen2_5OmniTalkerForConditionalGeneration
from omni_cli.stage.request_payloads import RequestPayload

NUM_ROWS, SIZE, HIDDEN, VOCABULARY, MASK = 16, 6, 4, 32, 31


class Inner(nn.Module):
    """Replaces the layers: returns its input."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, SIZE)

    def forward(self, input_ids, positions, intermediate_tensors, inputs_embeds):
        return inputs_embeds


@pytest.fixture(autouse=True)
def first_rank(monkeypatch):
    monkeypatch.setattr(
        input_embeds_stage, "get_pp_group", lambda: SimpleNamespace(is_first_rank=True, is_last_rank=True)
    )


def talker() -> Qwen2_5OmniTalkerForConditionalGeneration:
    """The talker's own code around a stand-in for its layers; `__init__` needs a whole vLLM configuration."""
    model = Qwen2_5OmniTalkerForConditionalGeneration.__new__(Qwen2_5OmniTalkerForConditionalGeneration)
    nn.Module.__init__(model)
    torch.manual_seed(0)
    model.config = SimpleNamespace(tts_codec_mask_token_id=MASK)
    model.model = Inner()
    projection = nn.Linear(SIZE, HIDDEN, bias=False)
    model.thinker_to_talker_proj = lambda embeds: (projection(embeds), None)
    model.make_input_buffers(NUM_ROWS, SIZE, HIDDEN)
    return model.requires_grad_(False)


class ReadsFromOutside(TorchDispatchMode):
    """Notes the addresses of all tensors that are read and were not created in the block."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: set[int] = set()
        self._made: set[int] = set()
        self._alive: list[torch.Tensor] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        self.addresses |= {tensor.data_ptr() for tensor in tensors} - self._made
        result = function(*args, **(kwargs or {}))
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        # A view or an output in place lies in memory that was there before.
        known = {tensor.untyped_storage().data_ptr() for tensor in tensors}
        self._made |= {tensor.data_ptr() for tensor in made if tensor.untyped_storage().data_ptr() not in known}
        self._alive += made
        return result


def forward(model, input_ids: torch.Tensor) -> tuple[torch.Tensor, set[int]]:
    with ReadsFromOutside() as reads:
        output = model(input_ids, torch.zeros(3, len(input_ids)))
    return output.clone(), reads.addresses


batches = st.lists(
    st.tuples(st.integers(1, 5), st.integers(0, 5)).filter(lambda r: r[1] <= r[0]), min_size=1, max_size=4
).filter(lambda batch: sum(length for length, _ in batch) <= NUM_ROWS)


@settings(max_examples=100, deadline=None)
@given(steps=st.lists(batches, min_size=1, max_size=6), seed=st.integers(0, 1000))
def test_every_step_of_a_padded_size_reads_the_same_memory_and_gets_its_own_rows(steps, seed):
    model = talker()
    generator = torch.Generator().manual_seed(seed)
    # As vLLM's: one buffer for the ids, and every step has the size that was captured.
    input_ids = torch.zeros(NUM_ROWS, dtype=torch.long)
    _, captured = forward(model, input_ids)
    for batch in steps:
        rows = [torch.randn(length, SIZE, generator=generator) for length, _ in batch]
        count = sum(length for length, _ in batch)
        input_ids[:count] = torch.randint(0, VOCABULARY, (count,), generator=generator)
        model.fill_input_embeds(rows, [tokens_without_embedding for _, tokens_without_embedding in batch])
        output, reads = forward(model, input_ids)
        assert reads <= captured, "a graph would not have seen what this step reads"
        embeds = model.model.embed_tokens(input_ids[:count]).clone()
        embeds[input_ids[:count] == MASK] = 0
        offset = 0
        for length, tokens_without_embedding in batch:
            embeds[offset : offset + tokens_without_embedding] = 0
            offset += length
        expected = model.thinker_to_talker_proj(embeds + torch.cat(rows))[0]
        assert torch.allclose(output[:count], expected, atol=1e-6)


def test_a_step_without_such_tokens_forgets_those_before_it():
    model = talker()
    model.fill_input_embeds([torch.ones(3, SIZE)], [2])
    assert model.without_embedding[:3, 0].tolist() == [True, True, False]
    model.fill_input_embeds([torch.ones(3, SIZE)], [0])
    assert not model.without_embedding.any()


@pytest.mark.parametrize(
    ("rows", "message"),
    [([None], "needs prompt_embeds"), ([torch.ones(2, SIZE), torch.ones(2, SIZE + 1)], "rows of 6, got 7")],
)
def test_wrong_input_embeds_are_refused(rows, message):
    with pytest.raises(ValueError, match=message):
        talker().fill_input_embeds(rows, [0] * len(rows))


@given(prompt=st.integers(1, 6), tail=st.integers(0, 4), start=st.integers(0, 14), length=st.integers(1, 8))
def test_the_last_row_is_repeated_past_the_end(prompt, tail, start, length):
    rows = torch.arange(prompt + tail, dtype=torch.float32)[:, None].repeat(1, 3)
    payload = RequestPayload(prompt_embeds=rows[:prompt], information={"decode_embeds": rows[prompt:]})
    found = payload.input_embeds(start, length, torch.device("cpu"), torch.bfloat16)
    expected = [min(position, prompt + tail - 1) for position in range(start, start + length)]
    assert found.dtype == torch.bfloat16 and found[:, 0].tolist() == expected and found.shape == (length, 3)
