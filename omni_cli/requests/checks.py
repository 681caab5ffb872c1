"""Checks of a request's values: each returns the checked value or raises `ValueError("must be ...")`.

Imports no NumPy, which the help of a command does without.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import get_args

from omni_cli.config.bounds import MAX_FPS, MAX_NAME_LENGTH, MAX_TEMPERATURE
from omni_cli.config.families import Modality
from omni_cli.core.text import suggest

_SHOWN_CHARACTERS = 40  # of a wrong value


class ArgumentText(str):
    """A value of `--arg`, whose type the pipeline's call decides."""


def check_text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be text, not {_kind(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError("must be valid Unicode text") from error
    return value


def check_name(value: object) -> str:
    name = check_text(value)
    if not name.strip():
        raise ValueError("is empty")
    if len(name) > MAX_NAME_LENGTH:
        raise ValueError(f"must have at most {MAX_NAME_LENGTH} characters")
    if not name.isprintable():
        raise ValueError("must not contain control characters")
    return name


def check_adapter(value: object) -> str:
    """Return an adapter's name, "" for null: the base model."""
    return "" if value is None else check_name(value)


def check_flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, not {_kind(value)}")
    return value


def one_of(choices: object) -> Callable[[object], object]:
    def check(value: object) -> object:
        if value not in get_args(choices):
            raise ValueError(f"must be one of {', '.join(get_args(choices))}")
        return value

    return check


def whole_number(low: int, high: int) -> Callable[[object], int]:
    def check(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"must be a whole number, not {_kind(value)}")
        if not low <= value <= high:
            raise ValueError(f"must be from {low} to {high}, not {value if abs(value) < 10**20 else 'that large'}")
        return value

    return check


# The whole numbers that can be sent to a stage.
check_whole_number = whole_number(-(2**63), 2**63 - 1)


def check_number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"must be a number, not {_kind(value)}")
    if not abs(value) <= sys.float_info.max:  # false for NaN, too
        raise ValueError("must be a finite number")
    return float(value)


def check_temperature(value: object) -> float:
    temperature = check_number(value)
    if not 0 <= temperature <= MAX_TEMPERATURE:
        raise ValueError(f"must be from 0 to {MAX_TEMPERATURE:g}, not {temperature:g}")
    return temperature


def check_frame_rate(value: object) -> str:
    """Return a number, or a ratio such as 24000/1001, as text, which keeps it exact."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"must be a number, not {_kind(value)}")
    try:
        rate = Fraction(str(value)) if len(str(value)) < 30 else Fraction(0)
    except (ValueError, ZeroDivisionError):
        raise ValueError("must be a number or a ratio such as 24000/1001") from None
    if not 0 < rate <= MAX_FPS:
        raise ValueError(f"must be above 0 and at most {MAX_FPS}")
    if rate.denominator > MAX_FPS * MAX_FPS:
        raise ValueError("has too many decimals")
    return str(rate)


def check_paths(value: object) -> tuple[Path, ...]:
    paths = [value] if isinstance(value, str) else value
    if not isinstance(paths, list | tuple) or not all(isinstance(path, str) and path for path in paths):
        raise ValueError("must be a file name or a list of file names")
    return tuple(Path(path) for path in paths)


def check_voices(value: object) -> tuple[str | Path, ...]:
    """Return the name of a speaker, or files, which have a suffix or a folder: no speaker's name has a `.` or `/`."""
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or not words:
        raise ValueError("must be the name of a speaker, or one or several files")
    voices = tuple(Path(word) if {".", "/"} & set(check_text(word)) else check_name(word) for word in words)
    if len(voices) > 1 and not all(isinstance(voice, Path) for voice in voices):
        raise ValueError("must be one speaker's name, or one or several files")
    return voices


def check_texts(value: object) -> tuple[str, ...]:
    texts = tuple(map(check_text, value if isinstance(value, list) else [value]))
    if not all(text.strip() for text in texts) or not texts:
        raise ValueError("is empty")
    return texts


def check_path(value: object) -> tuple[Path, ...]:
    if not isinstance(value, str) or not value:
        raise ValueError("must be a file name")
    return (Path(value),)


def check_call_arguments(value: object) -> Mapping[str, object]:
    """Check a mapping, or words of the form NAME=VALUE, whose values get their types from the pipeline's call."""
    if isinstance(value, dict):
        return value
    if not isinstance(value, list):
        raise ValueError(f"must be an object of arguments, not {_kind(value)}")
    arguments: dict[str, object] = {}
    for word in value:
        name, equals, text = str(word).partition("=")
        if not equals or not name.isidentifier():
            raise ValueError(f"must be NAME=VALUE, not `{str(word)[:_SHOWN_CHARACTERS]}`")
        if name in arguments:
            raise ValueError(f"sets `{name}` twice")
        arguments[name] = ArgumentText(check_text(text))
    return arguments


def check_modalities(value: object) -> frozenset[str]:
    known: tuple[str, ...] = get_args(Modality)
    names = [name.strip() for name in value.split(",")] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("must be a list of modalities")
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        what = f"not `{unknown[0]}`" if unknown else "the list is empty"
        raise ValueError(f"must be a list of {', '.join(known)}; {what}")
    return frozenset(names)


def check_media_io(value: object) -> Mapping[str, float]:
    """Return vLLM's options for videos, on the command line as JSON. Its loader of frames knows their names."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = json.loads(value)
    videos = value.get("video") if isinstance(value, dict) and len(value) == 1 else None
    if not isinstance(videos, dict) or not all(type(number) in (int, float) for number in videos.values()):
        raise ValueError('must be an object of numbers for videos, such as {"video": {"fps": 1}}')
    return videos


def check_sampling(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"must be an object of sampling parameters, not {_kind(value)}")
    from pydantic import ValidationError

    from omni_cli.config.stage_keys import Sampling

    try:
        Sampling.model_validate(value)
    except ValidationError as failure:
        error = failure.errors()[0]
        key = str(error["loc"][0])
        if error["type"] == "extra_forbidden":
            near = suggest(key, Sampling.model_fields)
            meant = f"; {near}" if near else ""
            raise ValueError(f"has an unknown key `{key}`{meant}") from failure
        reason = error["msg"].removeprefix("Input ")
        raise ValueError(f"has an invalid value for `{key}`, which {reason}") from failure
    return value


def _kind(value: object) -> str:
    """Return the JSON name of a value's type, which also makes sense for a command-line value."""
    if value is None:
        return "null"
    names = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", dict: "an object"}
    return names.get(type(value), type(value).__name__)
