"""A few thousand damaged and inconsistent payloads; ten million by `python -m fuzz payloads`."""

from __future__ import annotations

import itertools
import random
import tracemalloc
from typing import Any

import msgspec
import pytest
import torch
from fuzz import payloads
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_cli.config.loader import load_profile
from omni_cli.models.qwen_omni.media import ThinkerOutput
from omni_cli.stage.payloads import (
    PayloadError,
    PayloadLimits,
    decode_additional_information,
    encode_additional_information,
)
from omni_cli.stage.request_payloads import RequestPayload


def test_every_case_is_rejected_or_returned_byte_for_byte() -> None:
    ends = [payloads.check(case) for case in itertools.islice(payloads.cases(random.Random(7)), 5000)]
    assert ends.count("accepted") > 500 and ends.count("rejected") > 2500


def test_memory_is_bounded_by_the_payload() -> None:
    for case in itertools.islice(payloads.cases(random.Random(8)), 500):
        payloads.check_memory(case)


def test_a_tensor_costs_one_copy_of_its_bytes() -> None:
    raw = encode_additional_information({"rows": torch.zeros(1000, 1000)})
    tracemalloc.start()
    decode_additional_information(raw)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < len(raw) + 64 * 1024


def raw_tensor(**fields: Any) -> bytes:
    return msgspec.msgpack.encode({"entries": {"x": {"data": b"", "shape": [0], "dtype": "float32", **fields}}})


@settings(max_examples=200, deadline=None)
@given(shape=st.lists(st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2**31, 2**62, 2**63]), max_size=8))
def test_an_empty_tensor_of_any_shape(shape: list[int]) -> None:
    """torch computes strides of empty tensors as well, and these overflowed (`RuntimeError`, `TypeError`)."""
    try:
        (tensor,) = decode_additional_information(raw_tensor(shape=shape)).values()
    except PayloadError:
        return
    assert list(tensor.shape) == shape


ITEM = b"\xa1x\x81\xa5items"


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"\x81\xa7entries\xdf\xff\xff\xff\xff" + b"\xc0" * 20, "truncated"),
        (b"\x81\xa7entries\xde\x00\x41" + b"\xa1x\x80" * 65, "65 entries, at most 64"),
        (b"\x81\xa7entries\x82" + ITEM + b"\x91\x01" + ITEM + b"\x91\x02", "two entries have the same name"),
        (b"\x81\xa7entries\x81" + ITEM + b"\xc0", "not a list"),
        (b"\x81\xa7entries\x90", "not a map"),
        (raw_tensor(shape=[1] * 9, data=b"1234"), "length <= 8"),
        (raw_tensor(dtype="bool", shape=[2], data=b"\x01\x02"), "other than 0 and 1"),
        ("text", "str instead of bytes"),
        (None, "NoneType instead of bytes"),
        (b"\x81\xa7entries" + b"\x91" * 100_000, "recursion"),
    ],
)
def test_undecodable_tensors_are_rejected_by_their_header(raw: Any, message: str) -> None:
    with pytest.raises(PayloadError, match=message):
        decode_additional_information(raw)


def test_a_list_is_refused_before_its_items_exist() -> None:
    raw = encode_additional_information({"x": [1.5] * 1_000_000})
    tracemalloc.start()
    with pytest.raises(PayloadError, match="1000000 list items, at most 1000"):
        decode_additional_information(raw, PayloadLimits(max_payload_items=1000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 * 1024


def test_encoding_rejects_what_decoding_rejects() -> None:
    values = {"x": torch.zeros(4), "y": [1, 2, 3]}
    for limits in (
        PayloadLimits(max_payload_bytes=20),
        PayloadLimits(max_payload_tensor_bytes=15),
        PayloadLimits(max_payload_entries=1),
        PayloadLimits(max_payload_items=2),
    ):
        with pytest.raises(PayloadError) as encoding:
            encode_additional_information(values, limits)
        with pytest.raises(PayloadError) as decoding:
            decode_additional_information(encode_additional_information(values), limits)
        assert encoding.value.limit == decoding.value.limit
        assert getattr(limits, encoding.value.limit) != getattr(PayloadLimits(), encoding.value.limit)


def test_limits_come_from_the_profile() -> None:
    config = load_profile("tiny-omni", ["talker.max_payload_items=7", "token2wav.max_payload_bytes=9"])
    assert PayloadLimits.of(config.stage("talker")) == PayloadLimits(max_payload_items=7)
    assert PayloadLimits.of(config.stage("token2wav")) == PayloadLimits(max_payload_bytes=9)
    assert PayloadLimits.of(config.stage("thinker")) == PayloadLimits()


@pytest.mark.parametrize(
    ("information", "message"),
    [
        ({"decode_embeds": [1]}, "decode_embeds: expected a tensor of 2 dimensions"),
        ({"decode_embeds": torch.zeros(1, 5)}, "do not fit"),
        ({"tokens_without_embedding": [1, 2]}, "one integer"),
        ({"tokens_without_embedding": torch.zeros(1)}, "a list of integers"),
        ({"more_embeds_follow": ["yes"]}, "a list of integers"),
        ({"mrope_positions": torch.zeros(2, 3, dtype=torch.int64)}, r"\(3, num_prompt_tokens\)"),
        ({"mrope_positions": torch.zeros(3, 3)}, "of float32"),
    ],
)
def test_information_must_have_the_expected_type(information: dict, message: str) -> None:
    with pytest.raises(PayloadError, match=message):
        RequestPayload(prompt_embeds=torch.zeros(2, 4), information=information)


@pytest.mark.parametrize("rows", [[1], torch.zeros(6), torch.zeros(0, 3), torch.zeros(2, 3, dtype=torch.int32)])
def test_prompt_embeds_must_be_rows_of_floats(rows: object) -> None:
    with pytest.raises(PayloadError, match="prompt_embeds: expected"):
        RequestPayload(prompt_embeds=rows)


@pytest.mark.parametrize("name", ["prompt_token_ids", "output_token_ids", "hidden_states"])
@pytest.mark.parametrize("value", [None, ["a"], [-1], torch.zeros(3)])
def test_a_hand_off_has_to_be_whole(name: str, value: object) -> None:
    whole = {"prompt_token_ids": [1], "output_token_ids": [2], "hidden_states": torch.zeros(1, 4)}
    with pytest.raises(PayloadError, match=name):
        ThinkerOutput.from_information({**whole, name: value})
