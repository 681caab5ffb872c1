"""One checker per field of a request; each returns the checked value or raises `ValueError("must be ...")`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

MAX_SEED = 2**32 - 1  # what NumPy's generator, which vLLM seeds too, takes
MAX_NUM_INFERENCE_STEPS = 10_000
MAX_IMAGE_SIDE = 8192
MAX_REQUEST_ID_LENGTH = 200
MODALITIES = ("text", "audio", "image")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be text, not {_kind(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError("must be valid Unicode text") from error
    return value


def _prompt(value: Any) -> str:
    if not _text(value).strip():
        raise ValueError("is empty")
    return value


def _name(value: Any) -> str:
    if not _text(value).strip():
        raise ValueError("is empty")
    if len(value) > MAX_REQUEST_ID_LENGTH:
        raise ValueError(f"must have at most {MAX_REQUEST_ID_LENGTH} characters")
    if not value.isprintable():
        raise ValueError("must have no control characters")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, not {_kind(value)}")
    return value


def _whole_number(low: int, high: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"must be a whole number, not {_kind(value)}")
        if not low <= value <= high:
            raise ValueError(
                f"must be from {low} to {high}, not {value if abs(value) < 10**20 else 'that large'}"
            )
        return value

    return check


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"must be a number, not {_kind(value)}")
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"must be a finite number of 0 or more, not {value}")
    return float(value)


def _paths(value: Any) -> tuple[Path, ...]:
    paths = [value] if isinstance(value, str) else value
    if not isinstance(paths, list | tuple) or not all(isinstance(path, str) and path for path in paths):
        raise ValueError("must be a file name or a list of file names")
    return tuple(Path(path) for path in paths)


def _modalities(value: Any) -> frozenset[str]:
    names = [name.strip() for name in value.split(",")] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("must be a list of modalities")
    unknown = [name for name in names if name not in MODALITIES]
    if unknown or not names:
        what = f"`{unknown[0]}` is none of them" if unknown else "none is given"
        raise ValueError(f"must be some of {', '.join(MODALITIES)}: {what}")
    return frozenset(names)


def _sampling(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"must be an object of sampling parameters, not {_kind(value)}")
    return value


CHECKERS: Mapping[str, Callable[[Any], Any]] = {
    "request_id": _name,
    "prompt": _prompt,
    "audio": _paths,
    "image": _paths,
    "seed": _whole_number(0, MAX_SEED),
    "sampling": _sampling,
    "max_tokens": _whole_number(1, 2**31 - 1),
    "temperature": _number,
    "modalities": _modalities,
    "raw": _flag,
    "speaker": _name,
    "negative_prompt": _text,
    "num_inference_steps": _whole_number(1, MAX_NUM_INFERENCE_STEPS),
    "guidance_scale": _number,
    "height": _whole_number(1, MAX_IMAGE_SIDE),
    "width": _whole_number(1, MAX_IMAGE_SIDE),
}


def _kind(value: Any) -> str:
    """The JSON name of a value's type, which is also understood of a command-line value."""
    if value is None:
        return "null"
    names = {
        bool: "true or false",
        int: "a number",
        float: "a number",
        str: "text",
        list: "a list",
        dict: "an object",
    }
    return names.get(type(value), type(value).__name__)
