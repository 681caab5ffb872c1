"""Stage outputs and payloads of requests: damaged bytes, and well-formed structures with false values."""

from __future__ import annotations

import contextlib
import random
import tracemalloc
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import torch

from fuzz.msgpack_mutation import damaged
from omni_cli.models.qwen_omni.media import ThinkerOutput
from omni_cli.stage.payloads import (
    DEFAULT_LIMITS,
    PayloadError,
    PayloadLimits,
    decode_additional_information,
    encode_additional_information,
    get_integers,
    get_tensor,
)
from omni_cli.stage.request_payloads import ADDITIONAL_INFORMATION, read_request_payload

DTYPES = ["float32", "float16", "bfloat16", "int64", "int32", "uint8", "bool"]
ITEMSIZES = dict(zip(DTYPES, [4, 2, 2, 8, 4, 1, 1], strict=True))
ODD_DTYPES = ["float64", "complex64", "object", "", "float", "Float32", "torch.float32", "\x00", "float\x1b", "é" * 300]
SIZES = [0, 1, 2, 3, -1, 5, 2**16, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), None, "2", 2.0]
ITEMS = [0, 1, -1, 2**63, 2**64 - 1, -(2**63), 0.5, float("nan"), float("inf"), "", "a", "日本" * 9, "\ud7ff", 10**6]
ODD_ITEMS = [None, True, [1], {"a": 1}, b"x"]
NAMES = [
    "x", "codec_token_ids", "prompt_embeds", "decode_embeds", "tokens_without_embedding", "more_embeds_follow",
    "mrope_positions", "prompt_token_ids", "output_token_ids", "hidden_states", "token_ids", "image_grid_thw", "",
    "a" * 300,
]  # fmt: skip
TIGHT = PayloadLimits(max_payload_bytes=160, max_payload_tensor_bytes=48, max_payload_entries=2, max_payload_items=4)
# Beyond what a payload brings: the exception, the dicts, and what Python keeps of them.
FIXED_BYTES = 32 * 1024
BYTES_A_BYTE = 32  # of lists: a text of two characters is three bytes, and 72 as an object in a list


class Case(NamedTuple):
    door: str
    raw: bytes
    limits: PayloadLimits


def _seeds() -> list[bytes]:
    floats = torch.arange(12.0)
    information = [
        {"x": floats},
        {"prompt_embeds": floats.reshape(3, 4)}, {"prompt_embeds": floats.reshape(1, 12).to(torch.bfloat16)},
        {"codec_token_ids": list(range(40))},
        {"decode_embeds": floats.reshape(3, 4), "tokens_without_embedding": [2], "more_embeds_follow": [1],
         "mrope_positions": torch.zeros(3, 5, dtype=torch.int64)},
        {"prompt_token_ids": [1, 2], "output_token_ids": [3], "hidden_states": floats.reshape(2, 6),
         "image_grid_thw": torch.ones(1, 3, dtype=torch.int64)},
        {"token_ids": [5, 6], "hidden_states": floats.reshape(2, 6).to(torch.bfloat16)},
        {"speaker": ["Chelsie"], "scale": [0.5, -1.0], "flags": torch.tensor([True, False])},
        {"empty": torch.empty(0, 4), "none": []},
        {str(number): [number] for number in range(20)},
    ]  # fmt: skip
    return [encode_additional_information(values) for values in information]


INFORMATION = _seeds()


def cases(rng: random.Random) -> Iterator[Case]:
    while True:
        door = rng.choice(("information", "request", "stage_output"))
        limits = TIGHT if rng.random() < 0.2 else DEFAULT_LIMITS
        structured = rng.random() < 0.4
        raw = _information(rng) if structured else damaged(rng, INFORMATION)
        yield Case(door, raw, limits)


def _tensor_fields(rng: random.Random) -> dict[str, Any]:
    """A tensor that is whole about half of the time, and else lies in one or more of its fields."""
    dtype: Any = rng.choice(DTYPES)
    shape: list[Any] = [rng.randint(0, 4) for _ in range(rng.choice((0, 1, 2, 2, 2, 3)))]
    size = ITEMSIZES[dtype]
    for length in shape:
        size *= length
    data: Any = bytes([rng.randint(0, 1 + (dtype != "bool") * 254)]) * size
    while rng.random() < 0.3:
        how = rng.randint(0, 5)
        if how == 0:
            shape = [*shape, rng.choice(SIZES)]
        elif how == 1:
            shape = [rng.choice(SIZES) for _ in range(rng.choice((1, 2, 3, 8, 9, 70)))]
        elif how == 2:
            dtype = rng.choice(ODD_DTYPES + DTYPES)
        elif how == 3:
            data = rng.choice((data[:-1], data + b"\2", b"", data * 3, b"\2" * len(data)))
        elif how == 4 and shape:
            shape[rng.randrange(len(shape))] = rng.choice(SIZES)
        else:
            return {"data": rng.choice((data, "text", None, 3)), "shape": shape, "dtype": dtype, rng.choice(NAMES): 1}
    return {"data": data, "shape": shape, "dtype": dtype}


def _information(rng: random.Random) -> bytes:
    entries: dict[Any, Any] = {}
    for _ in range(rng.choice((0, 1, 1, 2, 3)) if rng.random() < 0.99 else 70):
        name = rng.choice(NAMES) if rng.random() < 0.9 else rng.choice((1, b"x", str(rng.random())))
        entry: Any = _tensor_fields(rng) if rng.random() < 0.5 else {"items": _items(rng)}
        if rng.random() < 0.05:
            entry = rng.choice(
                ({**_tensor_fields(rng), "items": [1]}, None, [], {}, {"items": {"a": 1}}, {"data": b""})
            )
        entries[name] = entry
    payload: Any = {"entries": entries}
    if rng.random() < 0.03:
        payload = rng.choice((entries, {"entries": entries, "more": 1}, [entries], {"entries": list(entries)}))
    return msgspec.msgpack.encode(payload)


def _items(rng: random.Random) -> list[Any]:
    kind = rng.random()
    if kind < 0.5:
        return [rng.randint(0, 5) for _ in range(rng.randint(0, 4))]
    items = [rng.choice(ITEMS) for _ in range(rng.choice((0, 1, 2, 5, 20)))]
    return [*items, rng.choice(ODD_ITEMS)] if kind > 0.9 else items


def check(case: Case) -> str:
    """Raises for everything but a `PayloadError` or values that are, byte for byte, what the bytes say."""
    try:
        decoded = _decode(case)
    except PayloadError as error:
        assert len(str(error)) < 2000, "a message is for people"
        return "rejected"
    _compare(case, decoded)
    return "accepted"


def check_memory(case: Case) -> str:
    """`check`, and what decoding allocates is bound to what has arrived."""
    tracemalloc.start()
    with contextlib.suppress(PayloadError):
        decoded = _decode(case)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    decoded = None  # noqa: F841 - it had to live until the peak was read
    arrived = len(case.raw)
    assert peak <= FIXED_BYTES + BYTES_A_BYTE * arrived, f"{peak} bytes allocated for {arrived} bytes"
    return check(case)


class _Params(NamedTuple):
    extra_args: dict[str, bytes]


def _decode(case: Case) -> Any:
    if case.door == "request":
        payload = read_request_payload(_Params({ADDITIONAL_INFORMATION: case.raw}), None, case.limits)
        embeds = {} if payload.prompt_embeds is None else {"prompt_embeds": payload.prompt_embeds}
        return {**payload.information, **embeds}
    decoded = decode_additional_information(case.raw, case.limits)
    if case.door == "stage_output":
        if "token_ids" in decoded:
            # As `more_embeds` reads a further part.
            get_integers(decoded, "token_ids")
            get_tensor(decoded, "hidden_states", num_dims=2)
        else:
            ThinkerOutput.from_information(decoded)
    return decoded


def _compare(case: Case, decoded: Any) -> None:
    """`decoded` against what msgspec makes of the same bytes without types."""
    limits = case.limits
    assert len(case.raw) <= limits.max_payload_bytes
    said = msgspec.msgpack.decode(case.raw)
    entries = said["entries"]
    assert decoded.keys() == entries.keys() and len(entries) <= limits.max_payload_entries
    num_items = 0
    for name, value in decoded.items():
        if isinstance(value, torch.Tensor):
            _compare_tensor(value, entries[name], limits)
        else:
            num_items += len(value)
            # As bytes: NaN differs from itself.
            assert msgspec.msgpack.encode(value) == msgspec.msgpack.encode(entries[name]["items"])
    assert num_items <= limits.max_payload_items


def _compare_tensor(tensor: torch.Tensor, said: dict[str, Any], limits: PayloadLimits) -> None:
    assert list(tensor.shape) == said["shape"] and str(tensor.dtype) == "torch." + said["dtype"]
    assert tensor.reshape(-1).view(torch.uint8).numpy().tobytes() == said["data"]
    assert len(said["data"]) <= limits.max_payload_tensor_bytes
