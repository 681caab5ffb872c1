"""The ledger alone, against a scheduler that does everything that vLLM may do to a request, in random order."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_cli.vllm_integration.row_ledger import ComputedSpan, RowLedger

HIDDEN_SIZE = 2
BLOCK_SIZE = 4


def row_values(start: int, end: int) -> torch.Tensor:
    """The row of position p is [p, -p]."""
    positions = torch.arange(start, end, dtype=torch.float32)
    return torch.stack([positions, -positions], dim=1)


def settle(ledger: RowLedger, span: ComputedSpan, rows: torch.Tensor) -> torch.Tensor:
    """A step of one span."""
    (owed,) = ledger.settle_step([span], rows)
    return owed


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_every_position_gets_exactly_one_row(data):
    ledger = RowLedger()
    ledger.begin("request")
    ledger.keep_cached_rows(num_blocks=128, block_size=BLOCK_SIZE, hidden_size=HIDDEN_SIZE, dtype=torch.float32)
    length = data.draw(st.integers(1, 60), label="length")
    blocks = list(range(-(-length // BLOCK_SIZE)))
    # Another request has computed the start of the same prompt; whole blocks of it are cached.
    cached = data.draw(st.integers(0, length // BLOCK_SIZE), label="cached blocks") * BLOCK_SIZE
    if cached:
        ledger.begin("other")
        span = ledger.with_blocks(ComputedSpan("other", 0, cached, 0), blocks)
        if data.draw(st.booleans(), label="other aborted while its step was under way"):
            ledger.forget("other")
        settle(ledger, span, row_values(0, cached))
    computed = min(cached, length - 1)
    received, on_their_way = [], []
    late = data.draw(st.booleans(), label="late")
    # Another request decodes beside it all the time, in separate blocks.
    ledger.begin("beside")
    beside_blocks, beside_received, beside_computed = list(range(127, 63, -1)), [], 0
    while computed < length:
        count = data.draw(st.integers(1, length - computed), label="chunk")
        rejected = data.draw(st.integers(0, count - 1), label="rejected")
        span = ComputedSpan("request", computed, count, 0, num_draft_tokens=count - 1)
        span = ledger.with_blocks(span, blocks).accepted(num_sampled_tokens=count - rejected)
        assert span.length == count - rejected
        step = [(span, row_values(computed, computed + span.length))]
        if beside_computed < 64 * BLOCK_SIZE:
            beside = ledger.with_blocks(ComputedSpan("beside", beside_computed, 1, 0), beside_blocks)
            step.append((beside, row_values(1000 + beside_computed, 1001 + beside_computed)))
            beside_computed += 1
        on_their_way.append(data.draw(st.permutations(step), label="order in the batch"))
        computed += span.length
        # With asynchronous scheduling, the next step has been scheduled when a step's rows arrive.
        while len(on_their_way) > late:
            _settle(ledger, on_their_way.pop(0), received, beside_received)
        if data.draw(st.booleans(), label="preempted"):
            computed = data.draw(st.integers(0, computed // BLOCK_SIZE), label="kept blocks") * BLOCK_SIZE
            computed = min(computed, length - 1)
    for step in on_their_way:
        _settle(ledger, step, received, beside_received)
    assert torch.equal(torch.cat(received), row_values(0, length))
    assert torch.equal(torch.cat(beside_received), row_values(1000, 1000 + beside_computed))
    # A later request finds its rows in the cache as well.
    ledger.begin("later")
    whole = (beside_computed - 1) // BLOCK_SIZE * BLOCK_SIZE
    last = ledger.with_blocks(ComputedSpan("later", whole, beside_computed - whole, 0), beside_blocks)
    owed = settle(ledger, last, row_values(1000 + whole, 1000 + beside_computed))
    assert torch.equal(owed, row_values(1000, 1000 + beside_computed))


def _settle(ledger, step, received, beside_received):
    spans, rows = zip(*step, strict=True)
    for span, owed in zip(spans, ledger.settle_step(spans, torch.cat(rows)), strict=True):
        (received if span.request_id == "request" else beside_received).append(owed)


def test_a_position_computed_again_is_not_sent_again():
    ledger = RowLedger()
    ledger.begin("request")
    span = ComputedSpan("request", 0, 3, 0)
    assert torch.equal(settle(ledger, span, row_values(0, 3)), row_values(0, 3))
    ledger.begin("request")
    assert settle(ledger, span, row_values(0, 3)).shape == (0, HIDDEN_SIZE)


def test_a_step_that_outlives_its_request_leaves_nothing_behind():
    """With asynchronous scheduling, a request's last step is settled after the request has ended."""
    ledger = RowLedger()
    ledger.begin("request")
    settle(ledger, ComputedSpan("request", 0, 3, 0), row_values(0, 3))
    ledger.forget("request")
    assert settle(ledger, ComputedSpan("request", 3, 1, 0), row_values(3, 4)).shape == (0, HIDDEN_SIZE)
    assert ledger._next_position == {}


def test_a_cached_prefix_without_kept_rows_is_an_error_that_names_the_request():
    ledger = RowLedger()
    ledger.begin("late")
    with pytest.raises(RuntimeError, match=r"request late: positions 0 to 3 were never computed here"):
        settle(ledger, ComputedSpan("late", 4, 2, 0), row_values(4, 6))
