"""Payloads: decoding returns what was encoded, and malformed ones never get as far as an allocation."""

from __future__ import annotations

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_cli.stage.payloads import (
    PayloadError,
    PayloadLimits,
    decode_additional_information,
    encode_additional_information,
)

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool]


@settings(max_examples=100, deadline=None)
@given(
    shape=st.lists(st.integers(0, 5), min_size=0, max_size=4),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**31),
)
def test_tensors_come_back_bit_for_bit(shape, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    tensor = torch.randint(0, 2, shape, generator=generator).to(dtype)
    back = decode_additional_information(encode_additional_information({"x": tensor}))["x"]
    assert back.dtype == dtype and back.shape == tensor.shape and torch.equal(back, tensor)


def test_lists_and_a_transposed_tensor_come_back():
    values = {"names": ["a", "ü"], "numbers": [1, 2.5], "view": torch.arange(6.0).reshape(2, 3).T}
    back = decode_additional_information(encode_additional_information(values))
    assert back["names"] == ["a", "ü"] and back["numbers"] == [1, 2.5]
    assert torch.equal(back["view"], values["view"])


def raw_rows(**fields):
    good = {"data": b"\0" * 24, "shape": (2, 3), "dtype": "float32"}
    return msgspec.msgpack.encode({"entries": {"rows": {**good, **fields}}})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"shape": (2, -3)}, "negative size"),
        ({"shape": (2, 4)}, "is 32 bytes, got 24"),
        ({"shape": (2**62, 2**62)}, "at most"),
        ({"dtype": "float128"}, "unknown dtype"),
        ({"data": b"\0" * 23}, "got 23"),
        ({"data": "text"}, r"at `\$\[...\].data`"),
        ({"extra": 1}, "unknown field"),
    ],
)
def test_malformed_tensors_are_refused(fields, message):
    with pytest.raises(PayloadError, match=message):
        decode_additional_information(raw_rows(**fields))


def test_limits_are_checked_before_decoding():
    rows = encode_additional_information({"rows": torch.zeros(4, 4)})
    with pytest.raises(PayloadError, match=r"64 bytes in rows .* at most 63"):
        decode_additional_information(rows, PayloadLimits(max_payload_tensor_bytes=63))
    entries = encode_additional_information({str(i): [i] for i in range(3)})
    with pytest.raises(PayloadError, match="3 entries, at most 2"):
        decode_additional_information(entries, PayloadLimits(max_payload_entries=2))
    with pytest.raises(PayloadError, match="5 list items, at most 4"):
        limits = PayloadLimits(max_payload_items=4)
        decode_additional_information(encode_additional_information({"x": range(3), "y": range(2)}), limits)


@settings(max_examples=300, deadline=None)
@given(raw=st.binary(max_size=200))
def test_random_bytes_end_in_a_payload_error(raw):
    with pytest.raises(PayloadError):
        decode_additional_information(raw)


@settings(max_examples=300, deadline=None)
@given(position=st.integers(0, 10_000), value=st.integers(0, 255))
def test_a_flipped_byte_is_refused_or_decodes_to_the_same_shape(position, value):
    raw = bytearray(encode_additional_information({"x": torch.zeros(3, 2), "n": [1, 2]}))
    raw[position % len(raw)] = value
    try:
        back = decode_additional_information(bytes(raw))
    except PayloadError:
        return
    assert all(isinstance(item, (torch.Tensor, list)) for item in back.values())
