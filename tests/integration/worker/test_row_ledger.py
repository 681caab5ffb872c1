"""The ledger alone, against a scheduler that does everything vLLM may do to a request, in random order."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_cli.worker.row_ledger import ComputedSpan, RowLedger

HIDDEN_SIZE = 2
BLOCK_SIZE = 4


def row_values(start: int, end: int) -> torch.Tensor:
    """The row of position p is [p, -p]."""
    positions = torch.arange(start, end, dtype=torch.float32)
    return torch.stack([positions, -positions], dim=1)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_every_position_gets_exactly_one_row(data):
    ledger = RowLedger()
    ledger.begin("request")
    ledger.keep_cached_rows(num_blocks=64, block_size=BLOCK_SIZE, hidden_size=HIDDEN_SIZE, dtype=torch.float32)
    length = data.draw(st.integers(1, 60), label="length")
    blocks = list(range(-(-length // BLOCK_SIZE)))
    # Another request has computed a beginning of the same prompt; whole blocks of it are in the cache.
    cached = data.draw(st.integers(0, length // BLOCK_SIZE), label="cached blocks") * BLOCK_SIZE
    if cached:
        ledger.begin("other")
        span = ledger.with_blocks(ComputedSpan("other", 0, cached, 0), blocks)
        if data.draw(st.booleans(), label="other aborted while its step was under way"):
            ledger.forget("other")
        ledger.settle(span, row_values(0, cached))
    computed = min(cached, length - 1)
    received, on_their_way = [], []
    late = data.draw(st.booleans(), label="late")
    while computed < length:
        count = data.draw(st.integers(1, length - computed), label="chunk")
        rejected = data.draw(st.integers(0, count - 1), label="rejected")
        span = ComputedSpan("request", computed, count, 0, num_draft_tokens=count - 1)
        span = ledger.with_blocks(span, blocks).accepted(num_sampled_tokens=count - rejected)
        assert span.length == count - rejected
        on_their_way.append((span, row_values(computed, computed + span.length)))
        # With asynchronous scheduling, the next step has been scheduled when a step's rows arrive.
        if not late or len(on_their_way) > 1:
            received.append(ledger.settle(*on_their_way.pop(0)))
        computed += span.length
        if data.draw(st.booleans(), label="preempted"):
            computed = data.draw(st.integers(0, computed // BLOCK_SIZE), label="kept blocks") * BLOCK_SIZE
            computed = min(computed, length - 1)
    received += [ledger.settle(*arrived) for arrived in on_their_way]
    assert torch.equal(torch.cat(received), row_values(0, length))


def test_a_position_computed_again_is_not_handed_out_again():
    ledger = RowLedger()
    ledger.begin("request")
    span = ComputedSpan("request", 0, 3, 0)
    assert torch.equal(ledger.settle(span, row_values(0, 3)), row_values(0, 3))
    ledger.begin("request")
    assert ledger.settle(span, row_values(0, 3)).shape == (0, HIDDEN_SIZE)


def test_a_step_that_outlives_its_request_leaves_nothing_behind():
    """With asynchronous scheduling a request's last step is settled after the request has ended."""
    ledger = RowLedger()
    ledger.begin("request")
    ledger.settle(ComputedSpan("request", 0, 3, 0), row_values(0, 3))
    ledger.forget("request")
    assert ledger.settle(ComputedSpan("request", 3, 1, 0), row_values(3, 4)).shape == (0, HIDDEN_SIZE)
    assert ledger._next_position == {}


def test_a_cached_prefix_without_kept_rows_is_an_error_that_names_the_request():
    ledger = RowLedger()
    ledger.begin("late")
    with pytest.raises(RuntimeError, match=r"request late: positions 0 to 3 were never computed here"):
        ledger.settle(ComputedSpan("late", 4, 2, 0), row_values(4, 6))
