"""The code predictor against transformers' own, and the determinism of its draws."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from support.code_predictors import CODEBOOKS, CODES, MAX_BATCH, WIDTH, code_predictor, reference_predictor
from support.fake_graphs import FakeBackend
from torch._dynamo.testing import CompileCounter
from transformers import LogitsProcessorList, TopKLogitsWarper, TopPLogitsWarper
from vllm.model_executor.models.qwen2 import Qwen2Model
from vllm.model_executor.models.utils import AutoWeightsLoader

from omni_cli.backends.execution.graphs import batch_sizes
from omni_cli.backends.vllm.code_runner import Draws, FrameStore
from omni_cli.backends.vllm.hidden_states import ComputedSpan
from omni_cli.models.codec.code_predictor import CodeSampling, stack_projections


@pytest.fixture(scope="module")
def reference():
    return reference_predictor()


@pytest.fixture(scope="module")
def first_table():
    return torch.randn(CODES, WIDTH, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def predictor(reference, first_table):
    return code_predictor(reference, first_table)


def inputs(batch: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(batch, WIDTH, generator=draw), torch.randint(0, CODES, (batch,), generator=draw)


@torch.no_grad()
def test_greedy_codes_and_rows_equal_the_reference_step_after_step(reference, predictor, first_table):
    """The cache uses the same memory in every step, for larger and smaller batches."""
    for step, batch in enumerate((1, 5, 8, 2, 1)):
        hidden, first = inputs(batch, step)
        codes, rows = predictor(hidden, first)
        for request in range(batch):
            expected = reference.generate(
                inputs_embeds=torch.stack([hidden[request], first_table[first[request]]])[None],
                max_new_tokens=CODEBOOKS - 1,
                do_sample=False,
            )[0].tolist()
            assert codes[request].tolist() == [int(first[request]), *expected]
            summed = sum(
                table.weight[code] for table, code in zip(reference.model.codec_embedding, expected, strict=True)
            )
            torch.testing.assert_close(rows[request], summed)


@torch.no_grad()
def test_draws_are_spread_as_the_reference_spreads_them(reference, predictor, first_table):
    hidden, first = inputs(1)
    logits = reference(inputs_embeds=torch.stack([hidden, first_table[first]], dim=1)).logits[:, -1]
    warped = LogitsProcessorList([TopKLogitsWarper(20), TopPLogitsWarper(0.8)])(None, logits)
    expected = warped.softmax(dim=-1)[0]
    assert (expected > 0).sum() > 2
    counts, num_steps = torch.zeros(CODES), 500
    draws = Draws(7, MAX_BATCH * (CODEBOOKS - 1))
    for step in range(num_steps):
        drawn = torch.from_numpy(draws.get(step)).view(MAX_BATCH, -1)
        codes, _ = predictor(hidden.expand(MAX_BATCH, -1), first.expand(MAX_BATCH), drawn)
        counts += torch.bincount(codes[:, 1], minlength=CODES)
    shares = counts / (num_steps * MAX_BATCH)
    assert not shares[expected == 0].any()
    # Four standard deviations of the most uncertain share.
    assert (shares - expected).abs().max() < 4 * (0.25 / (num_steps * MAX_BATCH)) ** 0.5


@torch.no_grad()
def test_extreme_draws_stay_among_the_codes_that_are_kept(reference, predictor, first_table):
    hidden, first = inputs(2, seed=5)
    greedy, _ = predictor(hidden, first)
    lowest, _ = predictor(hidden, first, torch.zeros(2, CODEBOOKS - 1))
    assert lowest.tolist() == greedy.tolist()  # the most probable code comes first
    highest, _ = predictor(hidden, first, torch.full((2, CODEBOOKS - 1), 1 - 2**-24))
    logits = reference(inputs_embeds=torch.stack([hidden, first_table[first]], dim=1)).logits[:, -1]
    warped = LogitsProcessorList([TopKLogitsWarper(20), TopPLogitsWarper(0.8)])(None, logits)
    assert warped.gather(1, highest[:, 1:2]).isfinite().all()


@torch.no_grad()
def test_a_top_k_of_0_keeps_all_codes_as_in_transformers(reference, first_table):
    hidden, first = inputs(3, seed=5)
    draws = torch.rand(3, CODEBOOKS - 1, generator=torch.Generator().manual_seed(6))
    none, every = (code_predictor(reference, first_table, CodeSampling(top_k, 0.9)) for top_k in (0, CODES))
    assert torch.equal(none(hidden, first, draws)[0], every(hidden, first, draws)[0])


@torch.no_grad()
def test_greedy_and_sampled_requests_share_a_step(predictor):
    hidden, first = inputs(4, seed=9)
    alone, _ = predictor(hidden, first)
    drawn = torch.rand(4, CODEBOOKS - 1, generator=torch.Generator().manual_seed(2))
    drawn[::2] = 0  # greedy
    codes, _ = predictor(hidden, first, drawn)
    assert codes[::2].tolist() == alone[::2].tolist()
    assert codes[1::2].tolist() != alone[1::2].tolist()
    (one, _), (three, _) = (predictor(hidden[i : i + 1], first[i : i + 1], drawn[i : i + 1]) for i in (1, 3))
    assert codes[1::2].tolist() == [*one.tolist(), *three.tolist()]


@torch.no_grad()
def test_of_equal_codes_a_greedy_request_takes_the_same_alone_and_beside_sampled_ones(reference, first_table):
    """In bfloat16 the two best of a hundred frames are equal in some."""
    rounded = deepcopy(reference)
    for head in rounded.lm_head:
        head.register_forward_hook(lambda *call: call[-1].round())
    predictor, (hidden, first) = code_predictor(rounded, first_table), inputs(MAX_BATCH)
    alone, _ = predictor(hidden, first)
    drawn = torch.zeros(MAX_BATCH, CODEBOOKS - 1)
    drawn[-1] = 0.5  # sampled
    codes, _ = predictor(hidden, first, drawn)
    assert codes[:-1].tolist() == alone[:-1].tolist()


@torch.inference_mode()
def test_graphs_return_the_codes_of_the_predictor_for_any_number_of_requests(predictor):
    backend = FakeBackend()
    predictor.capture(backend, inputs(MAX_BATCH)[0])
    assert len(backend.graphs) == 4 and predictor.counters.graphs_captured == 4  # of 12 and 8, greedy and sampled
    assert predictor.counters.graph_pool_bytes > 0 and predictor.counters.capture_s > 0
    kept = []
    for step, batch in enumerate((1, 3, 8, 12, 9)):
        hidden, first = inputs(batch, step)
        drawn = torch.rand(batch, CODEBOOKS - 1, generator=torch.Generator().manual_seed(step))
        for draws in (None, drawn):
            expected = predictor.forward(hidden, first, draws)
            kept.append((predictor(hidden, first, draws), expected))
    # Compared at the end: a replay must not overwrite what an earlier one has returned.
    for made, expected in kept:
        assert made[0].tolist() == expected[0].tolist()
        torch.testing.assert_close(made[1], expected[1])
    assert (predictor.counters.graph_replays, predictor.counters.eager_calls) == (10, 0)


@torch.no_grad()
def test_a_frame_that_is_not_numbers_leaves_nothing_to_the_next_one(predictor):
    hidden, first = inputs(2)
    expected, _ = predictor(hidden, first)
    broken = torch.full_like(hidden, float("nan"))
    predictor(broken, first)
    predictor(broken, first, torch.tensor([0.0, 0.5])[:, None].expand(2, CODEBOOKS - 1))  # greedy and sampled
    codes, _ = predictor(hidden, first)
    assert codes.tolist() == expected.tolist()


@torch.no_grad()
def test_layers_with_stacked_products_make_the_same(reference, first_table):
    stacked = deepcopy(reference)
    stack_projections(stacked.model.layers)
    AutoWeightsLoader(stacked).load_weights(reference.state_dict().items(), mapper=Qwen2Model.hf_to_vllm_mapper)
    hidden, first = inputs(3, seed=4)
    (codes, rows), (same, sums) = (code_predictor(one, first_table)(hidden, first) for one in (reference, stacked))
    assert codes.tolist() == same.tolist()
    torch.testing.assert_close(sums, rows)
    weights = dict(stacked.model.layers.named_parameters())
    assert weights["1.self_attn.qkv_proj.weight"].shape == ((4 + 2 * 2) * 32, WIDTH)
    assert weights["1.mlp.gate_up_proj.weight"].shape == (2 * 96, WIDTH)


@torch.inference_mode()
def test_code_is_compiled_three_times_for_all_numbers_of_requests_and_positions(predictor, monkeypatch):
    """Layers for two rows per request and for one, and the draw."""
    counter = CompileCounter()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    expected = [predictor(*inputs(batch), torch.full((batch, CODEBOOKS - 1), 0.5)) for batch in (12, 8)]
    predictor.compile_parts()
    made = [predictor(*inputs(batch), torch.full((batch, CODEBOOKS - 1), 0.5)) for batch in (12, 8)]
    assert counter.frame_count == 3
    assert [codes.tolist() for codes, _ in made] == [codes.tolist() for codes, _ in expected]


@pytest.mark.parametrize(
    ("max_batch", "sizes"), [(2, [2]), (3, [3, 2]), (8, [8, 4, 2]), (33, [33, 32, 16, 8, 4, 2]), (6, [6, 4, 2])]
)
def test_sizes_halve_down_to_the_smallest(max_batch, sizes):
    assert batch_sizes(max_batch, 2) == sizes


def test_draws_depend_on_seed_and_frame_alone():
    rows = [Draws(4, 3).get(frame).tolist() for frame in range(200)]
    backwards = Draws(4, 3)
    assert [backwards.get(frame).tolist() for frame in reversed(range(200))] == rows[::-1]
    assert len({tuple(row) for row in rows}) == 200
    assert Draws(5, 3).get(0).tolist() != rows[0]
    assert Draws(-1, 3).get(0).tolist() == Draws(2**64 - 1, 3).get(0).tolist()


class Recorder:
    """A model whose code `n` of every codebook adds rows of n; records its inputs."""

    num_codebooks = 2

    def __init__(self) -> None:
        self.added: list[list[float]] = []

    def predict_codes(self, hidden, first_codes, draws):
        codes = torch.stack([first_codes, first_codes], dim=1)
        return codes, self.rows_of_codes(codes)

    def rows_of_codes(self, codes):
        return codes[:, 1:].float()

    def add_rows(self, rows):
        self.added.append(rows[:, 0].tolist())


def spans(*computed: tuple[str, int, int]) -> list[ComputedSpan]:
    made, row = [], 0
    for request_id, start, length in computed:
        made.append(ComputedSpan(request_id, start, length, row))
        row += length
    return made


def step(store: FrameStore, *computed: tuple[str, int, int], codes: list[int]) -> None:
    store.fill(spans(*computed))
    store.predict(spans(*computed), torch.zeros(len(codes), 1), torch.tensor(codes))


def test_frames_reach_the_positions_that_they_belong_to():
    model = Recorder()
    store = FrameStore(model, torch.device("cpu"))
    greedy = SimpleNamespace(seed=0, temperature=0.0)
    store.begin("a", 3, greedy, {})
    store.begin("b", 2, greedy, {})
    step(store, ("a", 0, 3), ("b", 0, 2), codes=[11, 21])
    assert model.added == []  # no frames in prompts
    step(store, ("a", 3, 1), ("b", 2, 1), codes=[12, 22])
    step(store, ("b", 3, 1), ("a", 4, 1), codes=[23, 13])  # in another order
    step(store, ("a", 5, 1), codes=[14])  # one sits out
    assert model.added == [[11, 21], [22, 12], [13]]
    # Computed again after a preemption, in two parts, beside the other.
    model.added.clear()
    store.fill(spans(("a", 0, 2), ("b", 4, 1)))
    store.fill(spans(("a", 2, 5)))
    assert model.added == [[0, 0, 23], [0, 11, 12, 13, 14]]


def test_a_frame_that_is_made_again_replaces_the_first_and_a_gap_is_an_error():
    model = Recorder()
    store = FrameStore(model, torch.device("cpu"))
    store.begin("a", 1, SimpleNamespace(seed=0, temperature=0.0), {})
    step(store, ("a", 0, 1), codes=[11])
    step(store, ("a", 0, 1), codes=[31])
    store.fill(spans(("a", 1, 1)))
    assert model.added == [[31]]
    with pytest.raises(RuntimeError, match="expected frame 1, got frame 3"):
        store.predict(spans(("a", 3, 1)), torch.zeros(1, 1), torch.tensor([1]))
    with pytest.raises(RuntimeError, match="the codes of frame"):
        store.fill(spans(("a", 1, 3)))
