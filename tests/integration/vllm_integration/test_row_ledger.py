"""The ledger alone, against a scheduler that does everything that vLLM may do to a request, in random order."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

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


def span_of(
    ledger: RowLedger, name: str, start: int, length: int, blocks: Sequence[int] = (), num_drafts: int = 0
) -> ComputedSpan:
    return ComputedSpan(name, start, length, 0, num_drafts, ledger.owners[name], blocks)


def settle(ledger: RowLedger, span: ComputedSpan, rows: torch.Tensor) -> torch.Tensor | None:
    """A step of one span, whose rows are taken at once."""
    assert span.owner is not None
    settle_all(ledger, [span], rows)
    return span.owner.take()


def settle_all(ledger: RowLedger, spans: Sequence[ComputedSpan], rows: torch.Tensor) -> None:
    """`rows` are those of `spans`, one after another."""
    ends = list(itertools.accumulate(span.length for span in spans))
    ledger.settle([(span, range(end - span.length, end)) for span, end in zip(spans, ends, strict=True)], rows)


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
        span = span_of(ledger, "other", 0, cached, blocks)
        if data.draw(st.booleans(), label="other aborted while its step was under way"):
            ledger.forget("other")
        settle(ledger, span, row_values(0, cached))
    computed = min(cached, length - 1)
    on_their_way = []
    late = data.draw(st.integers(0, 3), label="late")
    # Another request decodes beside it all the time, in separate blocks.
    ledger.begin("beside")
    beside_blocks, beside_computed = list(range(127, 63, -1)), 0
    owner, beside_owner = ledger.owners["request"], ledger.owners["beside"]
    while computed < length:
        count = data.draw(st.integers(1, length - computed), label="chunk")
        rejected = data.draw(st.integers(0, count - 1), label="rejected")
        span = span_of(ledger, "request", computed, count, blocks, num_drafts=count - 1)
        span = span.accepted(num_sampled_tokens=count - rejected)
        assert span.length == count - rejected
        step = [(span, row_values(computed, computed + span.length))]
        if beside_computed < 64 * BLOCK_SIZE:
            beside = span_of(ledger, "beside", beside_computed, 1, beside_blocks)
            step.append((beside, row_values(1000 + beside_computed, 1001 + beside_computed)))
            beside_computed += 1
        on_their_way.append(data.draw(st.permutations(step), label="order in the batch"))
        computed += span.length
        # With asynchronous scheduling, the next step has been scheduled when a step's rows arrive.
        while len(on_their_way) > late:
            _settle(ledger, on_their_way, data.draw(st.integers(1, len(on_their_way)), label="steps settled together"))
        if data.draw(st.booleans(), label="preempted"):
            computed = data.draw(st.integers(0, computed // BLOCK_SIZE), label="kept blocks") * BLOCK_SIZE
            computed = min(computed, length - 1)
    _settle(ledger, on_their_way, len(on_their_way))
    assert torch.equal(owner.take(), row_values(0, length))
    if beside_computed:
        assert torch.equal(beside_owner.take(), row_values(1000, 1000 + beside_computed))
    # A later request finds its rows in the cache as well.
    ledger.begin("later")
    whole = (beside_computed - 1) // BLOCK_SIZE * BLOCK_SIZE
    last = span_of(ledger, "later", whole, beside_computed - whole, beside_blocks)
    owed = settle(ledger, last, row_values(1000 + whole, 1000 + beside_computed))
    assert torch.equal(owed, row_values(1000, 1000 + beside_computed))


def _settle(ledger, on_their_way, num_steps):
    parts = [part for step in on_their_way[:num_steps] for part in step]
    del on_their_way[:num_steps]
    if parts:
        spans, rows = zip(*parts, strict=True)
        settle_all(ledger, spans, torch.cat(rows))


def test_a_position_computed_again_is_not_sent_again():
    ledger = RowLedger()
    ledger.begin("request")
    span = span_of(ledger, "request", 0, 3)
    assert torch.equal(settle(ledger, span, row_values(0, 3)), row_values(0, 3))
    ledger.begin("request")
    assert span_of(ledger, "request", 0, 3).owner is span.owner
    assert settle(ledger, span, row_values(0, 3)) is None


def test_a_step_that_outlives_its_request_leaves_nothing_behind():
    """With asynchronous scheduling, a request's last step is settled after the request has ended."""
    ledger = RowLedger()
    ledger.begin("request")
    first, last = span_of(ledger, "request", 0, 3), span_of(ledger, "request", 3, 1)
    ledger.forget("request")
    settle(ledger, first, row_values(0, 3))
    assert torch.equal(settle(ledger, last, row_values(3, 4)), row_values(3, 4)), "its taker may be late, too"
    assert ledger.owners == {}


def test_a_cached_prefix_without_kept_rows_is_an_error_of_this_request_only():
    ledger = RowLedger()
    ledger.begin("late")
    ledger.begin("beside")
    spans = [span_of(ledger, "late", 4, 2), span_of(ledger, "beside", 0, 2)]
    settle_all(ledger, spans, torch.cat([row_values(4, 6), row_values(0, 2)]))
    with pytest.raises(RuntimeError, match=r"request late: positions 0 to 3 were never computed here"):
        ledger.owners["late"].take()
    assert torch.equal(ledger.owners["beside"].take(), row_values(0, 2))


def test_a_block_that_goes_to_another_request_between_two_steps_keeps_the_later_rows():
    ledger = RowLedger()
    ledger.keep_cached_rows(num_blocks=4, block_size=BLOCK_SIZE, hidden_size=HIDDEN_SIZE, dtype=torch.float32)
    for name in ("first", "second", "third"):
        ledger.begin(name)
    spans = [span_of(ledger, name, 0, BLOCK_SIZE, [3]) for name in ("first", "second")]
    settle_all(ledger, spans, torch.cat([row_values(0, BLOCK_SIZE), row_values(100, 100 + BLOCK_SIZE)]))
    made = settle(ledger, span_of(ledger, "third", BLOCK_SIZE, 1, [3, 2]), row_values(104, 105))
    assert torch.equal(made, row_values(100, 105))
