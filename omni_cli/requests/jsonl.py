"""`--requests FILE.jsonl`: one request per line; a bad line fails alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omni_cli.core.errors import InputError, UsageError
from omni_cli.core.text import suggest
from omni_cli.requests.capabilities import Capabilities
from omni_cli.requests.fields import FIELDS
from omni_cli.requests.files import open_input
from omni_cli.requests.request_spec import OPTIONS_OF_SAMPLING, BadRequest, RequestSpec, check_fields, get_spec

MAX_LINE_BYTES = 16 * 1024 * 1024

PROMPT_NAMES = ("prompt", "text_input", "text", "instruction", "question", "input", "context", "content")
OUTPUT_LENGTHS = ("output_length", "output_tokens_count", "completion_tokens_count")
"""Names of other tools' lines: Mooncake's traces, AIPerf, GuideLLM."""

_MAX_TOKENS = ("max_completion_tokens", "max_output_tokens", "max_new_tokens", "output_len", "output_tokens")
_OTHER_NAMES = {
    **dict.fromkeys(PROMPT_NAMES, "prompt"), **dict.fromkeys((*OUTPUT_LENGTHS, *_MAX_TOKENS), "max_tokens"),
    **dict.fromkeys(("messages", "conversations"), "body"), "id": "request_id", "image_url": "image",
    "input_audio": "audio", "audio_url": "audio", "video_url": "video", "sampling_params": "sampling",
    "lang": "language", "steps": "num_inference_steps", "cfg_scale": "guidance_scale", "frame_rate": "fps",
}  # fmt: skip
_BATCH_KEYS = ("custom_id", "method", "url", "body")
KEYS = tuple(name for name, row in FIELDS.items() if "generate" in row.lines)


def read_requests(
    path: Path, capabilities: Capabilities, defaults: Mapping[str, Any]
) -> list[RequestSpec | BadRequest]:
    """Return the requests of a JSONL file in line order; blank lines are skipped.

    `defaults` are checked fields for lines that do not set them; `sampling` is merged key by key. A request without
    `request_id` is named by its number, from 0. File names in a line are relative to the folder of the JSONL file.
    Raises `InputError` only if the file itself is unusable or empty.
    """
    requests: list[RequestSpec | BadRequest] = []
    taken: dict[str, str] = {}
    for number, line in read_lines(path):
        place = f"{path}:{number}"
        request_id = str(len(requests))
        try:
            fields = parse_object(line)
            for key in fields:
                if key not in KEYS:
                    raise InputError(f"unknown key `{key}`", hint=_hint(key))
            request_id = claim_id(fields, request_id, place, taken)
            checked = check_fields(fields, capabilities, _label)
            merged = {**defaults, **checked}
            sampling = {name: value for name, value in defaults.items() if name in OPTIONS_OF_SAMPLING}
            merged["sampling"] = {**sampling, **checked.get("sampling", {})}
            if "arg" in defaults:
                merged["arg"] = {**defaults["arg"], **checked.get("arg", {})}
            merged = {name: value for name, value in merged.items() if name in KEYS}
            if "prompt" not in merged and capabilities.lacks_prompt(merged):
                raise InputError("the key `prompt` is missing")
            capabilities.check_together(merged, _label)
            requests.append(get_spec(merged, request_id=request_id, folder=path.parent, place=place))
        except UsageError as error:
            requests.append(BadRequest(request_id, error, place))
    if not requests:
        raise InputError(
            f"the requests file `{path}` has no requests", hint='write one per line, as {"prompt": "hello"}'
        )
    return requests


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (line number from 1, line) for each non-blank line, cut to one byte over the cap."""
    with open_input(path, "requests file") as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            rest = line
            while not rest.endswith(b"\n") and len(rest) > MAX_LINE_BYTES:
                rest = file.readline(MAX_LINE_BYTES + 1)
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if line.strip():
                yield number, line


def parse_object(line: bytes) -> dict[str, Any]:
    """Return the object of a line. Raises `InputError`."""
    if len(line) > MAX_LINE_BYTES:
        raise InputError(f"the line is longer than {MAX_LINE_BYTES // 2**20} MiB")
    try:
        fields = json.loads(line.decode(), object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise InputError("the line is not UTF-8 text") from error
    except RecursionError as error:
        raise InputError("the line is not valid JSON: nested too deeply") from error
    except json.JSONDecodeError as error:
        raise InputError(f"the line is not JSON: {error.msg} at column {error.colno}") from error
    except ValueError as error:
        raise InputError(f"the line is not valid JSON: {error}") from error
    if not isinstance(fields, dict):
        raise InputError("the line is not a JSON object", hint='write each request as {"prompt": "hello"}')
    return fields


def _hint(key: str) -> str:
    from omni_cli.config.stage_keys import Sampling

    meant = _OTHER_NAMES.get(key, key)
    if meant in _BATCH_KEYS:
        named = ", ".join(f"`{name}`" for name in _BATCH_KEYS)
        return f"a file of OpenAI's batch form has {named} in each line, and no options of requests beside it"
    if meant in (*OPTIONS_OF_SAMPLING, *Sampling.model_fields):
        return f'write it as "sampling": {{"{meant}": ...}}'
    if meant == "model":
        return "`--model` chooses the model of all lines"
    # Below, words that only share some letters are near.
    near = f"did you mean `{meant}`?" if meant in KEYS else suggest(key, KEYS, cutoff=0.75)
    return near or f"known keys: {', '.join(KEYS)}"


def check_batch_line(fields: Mapping[str, Any], urls: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return the URL, one of `urls`, and the body of a line of OpenAI's batch files. Raises `InputError`."""
    if key := min({*_BATCH_KEYS} ^ fields.keys(), default=None):
        raise InputError(f"the key `{key}` is {'missing' if key in _BATCH_KEYS else 'unknown'}")
    method, url, body = (fields[key] for key in _BATCH_KEYS[1:])
    if method != "POST" or url not in urls:
        raise InputError(f"a batch has no `{method} {url}`", hint=f"`method` is POST, `url` {', '.join(urls)}")
    if not isinstance(body, dict) or body.get("stream"):
        raise InputError("`body` must be an object, without `stream`")
    return url, body


def claim_id(
    fields: Mapping[str, Any], default: str, place: str, taken: dict[str, str], key: str = "request_id"
) -> str:
    """Return the line's request id, unique among the lines so far; adds it to `taken`, which maps ids to FILE:LINE."""
    request_id = default
    if key in fields:
        try:
            request_id = FIELDS["request_id"].check(fields[key])
        except ValueError as error:
            raise InputError(f"{_label(key)} {error}") from error
    if request_id in taken:
        raise InputError(f"the {key.replace('_', ' ')} `{request_id}` is already used at {taken[request_id]}")
    taken[request_id] = place
    return request_id


def _label(name: str) -> str:
    return f"`{name}`"


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"duplicate key `{twice}`")
    return fields


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON number")
