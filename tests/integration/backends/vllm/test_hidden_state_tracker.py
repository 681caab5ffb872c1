"""The tracker alone, against a scheduler that does everything that vLLM may do to a request, in random order."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_cli.backends.vllm.hidden_states import ComputedSpan, HiddenStateTracker

HIDDEN_SIZE = 2
BLOCK_SIZE = 4


def row_values(start: int, end: int) -> torch.Tensor:
    """The row of position p is [p, -p]."""
    positions = torch.arange(start, end, dtype=torch.float32)
    return torch.stack([positions, -positions], dim=1)


def span_of(
    tracker: HiddenStateTracker, name: str, start: int, length: int, blocks: Sequence[int] = (), num_drafts: int = 0
) -> ComputedSpan:
    return ComputedSpan(name, start, length, 0, num_drafts, tracker.requests[name], blocks)


def resolve(tracker: HiddenStateTracker, span: ComputedSpan, rows: torch.Tensor) -> torch.Tensor | None:
    """A step of one span."""
    return tracker.resolve([(span, rows)]).get(span.request_id)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_every_position_gets_exactly_one_row(data):
    tracker = HiddenStateTracker()
    tracker.begin("request")
    tracker.keep_cached_rows(num_blocks=128, block_size=BLOCK_SIZE, hidden_size=HIDDEN_SIZE, dtype=torch.float32)
    length = data.draw(st.integers(1, 60), label="length")
    blocks = list(range(-(-length // BLOCK_SIZE)))
    # Another request has computed the start of the same prompt; whole blocks of it are cached.
    cached = data.draw(st.integers(0, length // BLOCK_SIZE), label="cached blocks") * BLOCK_SIZE
    if cached:
        tracker.begin("other")
        span = span_of(tracker, "other", 0, cached, blocks)
        if data.draw(st.booleans(), label="other aborted while its step was under way"):
            tracker.forget("other")
        resolve(tracker, span, row_values(0, cached))
    computed = min(cached, length - 1)
    on_their_way = []
    late = data.draw(st.integers(0, 3), label="late")
    # Another request decodes beside it all the time, in separate blocks.
    tracker.begin("beside")
    beside_blocks, beside_computed = list(range(127, 63, -1)), 0
    sent: dict[str, list[torch.Tensor]] = {"request": [], "beside": []}

    def resolve_first() -> None:
        for name, rows in tracker.resolve(on_their_way.pop(0)).items():
            sent[name].append(rows)

    while computed < length:
        count = data.draw(st.integers(1, length - computed), label="chunk")
        rejected = data.draw(st.integers(0, count - 1), label="rejected")
        span = span_of(tracker, "request", computed, count, blocks, num_drafts=count - 1)
        span = span.drop_rejected(num_sampled_tokens=count - rejected)
        assert span.length == count - rejected
        step = [(span, row_values(computed, computed + span.length))]
        if beside_computed < 64 * BLOCK_SIZE:
            beside = span_of(tracker, "beside", beside_computed, 1, beside_blocks)
            step.append((beside, row_values(1000 + beside_computed, 1001 + beside_computed)))
            beside_computed += 1
        on_their_way.append(data.draw(st.permutations(step), label="order in the batch"))
        computed += span.length
        # With asynchronous scheduling, the next step has been scheduled when a step's rows arrive.
        while len(on_their_way) > late:
            resolve_first()
        if data.draw(st.booleans(), label="preempted"):
            computed = data.draw(st.integers(0, computed // BLOCK_SIZE), label="kept blocks") * BLOCK_SIZE
            computed = min(computed, length - 1)
    while on_their_way:
        resolve_first()
    assert torch.equal(torch.cat(sent["request"]), row_values(0, length))
    if beside_computed:
        assert torch.equal(torch.cat(sent["beside"]), row_values(1000, 1000 + beside_computed))
    # A later request finds its rows in the cache as well.
    tracker.begin("later")
    whole = (beside_computed - 1) // BLOCK_SIZE * BLOCK_SIZE
    last = span_of(tracker, "later", whole, beside_computed - whole, beside_blocks)
    unsent = resolve(tracker, last, row_values(1000 + whole, 1000 + beside_computed))
    assert torch.equal(unsent, row_values(1000, 1000 + beside_computed))


def test_a_position_computed_again_is_not_sent_again():
    tracker = HiddenStateTracker()
    tracker.begin("request")
    span = span_of(tracker, "request", 0, 3)
    assert torch.equal(resolve(tracker, span, row_values(0, 3)), row_values(0, 3))
    tracker.begin("request")
    assert span_of(tracker, "request", 0, 3).sent is span.sent
    assert resolve(tracker, span, row_values(0, 3)) is None


def test_a_step_that_outlives_its_request_leaves_nothing_behind():
    """With asynchronous scheduling, a request's last step is resolved after the request has ended."""
    tracker = HiddenStateTracker()
    tracker.begin("request")
    first, last = span_of(tracker, "request", 0, 3), span_of(tracker, "request", 3, 1)
    tracker.forget("request")
    assert torch.equal(resolve(tracker, first, row_values(0, 3)), row_values(0, 3))
    assert torch.equal(resolve(tracker, last, row_values(3, 4)), row_values(3, 4))
    assert tracker.requests == {}


def test_rows_stay_when_the_memory_of_the_step_is_used_again():
    tracker = HiddenStateTracker()
    tracker.begin("request")
    step = row_values(0, 3)
    rows = resolve(tracker, span_of(tracker, "request", 0, 3), step)
    step.zero_()
    assert torch.equal(rows, row_values(0, 3))


def test_a_cached_prefix_without_kept_rows_is_an_error_that_names_the_request():
    tracker = HiddenStateTracker()
    tracker.begin("late")
    with pytest.raises(RuntimeError, match=r"request late: positions 0 to 3 were never computed here"):
        resolve(tracker, span_of(tracker, "late", 4, 2), row_values(4, 6))


def test_a_block_that_goes_to_another_request_keeps_the_later_rows():
    tracker = HiddenStateTracker()
    tracker.keep_cached_rows(num_blocks=4, block_size=BLOCK_SIZE, hidden_size=HIDDEN_SIZE, dtype=torch.float32)
    for name in ("first", "second", "third"):
        tracker.begin(name)
    resolve(tracker, span_of(tracker, "first", 0, BLOCK_SIZE, [3]), row_values(0, BLOCK_SIZE))
    resolve(tracker, span_of(tracker, "second", 0, BLOCK_SIZE, [3]), row_values(100, 100 + BLOCK_SIZE))
    rows = resolve(tracker, span_of(tracker, "third", BLOCK_SIZE, 1, [3, 2]), row_values(104, 105))
    assert torch.equal(rows, row_values(100, 105))
