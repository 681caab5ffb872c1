"""`--requests FILE`: conversations (ShareGPT's JSON), our JSONL of requests, or a trace with arrival times."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from omni_cli.config.bounds import MAX_TOKENS
from omni_cli.core.errors import InputError, UsageError
from omni_cli.core.text import suggest
from omni_cli.openai_api.media import image_part, sound_part
from omni_cli.requests.fields import FIELDS
from omni_cli.requests.files import open_input
from omni_cli.requests.jsonl import parse_object, read_lines

MAX_BYTES = 2**31
_WHAT = "requests file"
_ROWS = [row for row in FIELDS.values() if "loadtest" in row.lines]
_KEYS = (*(row.name for row in _ROWS), "arrival_s")
_PLAIN_KEYS = (*(row.name for row in _ROWS if row.part not in ("media", "sampling")), "arrival_s")
# Of Mooncake's traces: milliseconds, tokens, and hashes of shared prefixes.
_TRACE_KEYS = ("timestamp", "input_length", "output_length", "hash_ids")
_SAMPLING = {row.name: row.http["chat"] for row in FIELDS.values() if row.part == "sampling" and "chat" in row.http}
_TURNS = ("conversations", "conversation", "messages")
_HUMAN, _ANSWER = ("human", "user"), ("gpt", "assistant", "chatgpt", "bing", "bard", "model")
_IMAGES = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".webp": "webp"}
_SOUNDS = {".wav": "wav", ".mp3": "mp3", ".flac": "flac"}


@dataclass(frozen=True)
class DatasetRequest:
    """`prompt` None is drawn with `input_len` words or tokens. `parts` are media, as parts of a chat's content.

    `fields` are set in the request. `due_s` is the arrival time, counted from that of the first request.
    """

    prompt: str | None = None
    input_len: int | None = None
    parts: tuple[Mapping[str, object], ...] = ()
    fields: Mapping[str, object] = field(default_factory=dict)
    due_s: float | None = None


@dataclass(frozen=True)
class Dataset:
    """`notes` are sentences on what of the file is not used. `sha256` covers the media, too."""

    requests: tuple[DatasetRequest, ...]
    sha256: str
    notes: tuple[str, ...] = ()

    @property
    def arrivals_s(self) -> tuple[float, ...] | None:
        """The arrival times of a trace, ascending from 0."""
        times = tuple(item.due_s for item in self.requests if item.due_s is not None)
        return times or None

    def first(self, count: int) -> Dataset:
        """Return the first `count` requests."""
        return replace(self, requests=self.requests[:count])


def read_dataset(
    path: Path, *, count_tokens: Callable[[str], int], output_len: int | None, seed: int, is_chat: bool = True
) -> Dataset:
    """Read a file of requests. `output_len` replaces the lengths of a file's answers, which only chats have.

    Conversations are shuffled with `seed`; other requests keep their order. Raises `InputError` or `UsageError` for the
    first invalid line.
    """
    with open_input(path, _WHAT) as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise InputError(f"the {_WHAT} `{path}` is larger than {MAX_BYTES // 2**30} GiB")
    encoding = json.detect_encoding(content).upper().replace("-LE", "LE").replace("-BE", "BE")
    if not encoding.startswith("UTF-8"):
        hint = f"convert it: `iconv -f {encoding} -t UTF-8 {path} > utf8-{path.name}`"
        raise InputError(f"the {_WHAT} `{path}` is {encoding}, not UTF-8", hint=hint)
    digest = hashlib.sha256(content)
    if content.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"[":
        count = (lambda text: output_len or max(count_tokens(text), 1)) if is_chat else None
        return _conversations(path, content, digest.hexdigest(), count, seed)
    read = _LineReader(path, output_len, is_chat, digest.update)
    requests = tuple(read.request(number, line) for number, line in read_lines(path))
    if not requests:
        raise InputError(f"the {_WHAT} `{path}` has no requests", hint='write one per line, as {"prompt": "hello"}')
    timed = [item.due_s for item in requests if item.due_s is not None]
    if timed and len(timed) < len(requests):
        raise InputError(f"`{path}`: {len(timed)} of {len(requests)} requests have an arrival time; all or none must")
    notes = ("prefixes that requests of the trace share (`hash_ids`) are not: each prompt is new",)
    has_hashes = b'"hash_ids"' in content
    ordered = sorted(requests, key=lambda item: item.due_s or 0.0)
    first_s = min(timed, default=0.0)
    shifted = tuple(item if item.due_s is None else replace(item, due_s=item.due_s - first_s) for item in ordered)
    if timed and shifted[-1].due_s == 0:
        raise InputError(
            f"`{path}`: all requests arrive at the same time", hint="omit the times, and use `--request-rate`"
        )
    return Dataset(shifted, digest.hexdigest(), notes if has_hashes else ())


def _conversations(path: Path, content: bytes, sha256: str, count: Callable[[str], int] | None, seed: int) -> Dataset:
    wrong = f"the {_WHAT} `{path}` is not a list of conversations"
    # Bytes that are no UTF-8 become invalid text of the one conversation that has them.
    text = content.removeprefix(b"\xef\xbb\xbf").decode(errors="surrogateescape")
    try:
        conversations = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        message = f"{wrong}: conversation {_num_whole(text) + 1}: {reason}"
        raise InputError(message, hint="is the file truncated? download or write it again") from error
    first_turns, broken = [], []
    for number, conversation in enumerate(conversations, start=1):
        try:
            first_turns.append(_exchange(conversation))
        except ValueError as error:
            broken.append(f"conversation {number} {error}")
    exchanges = [exchange for exchange in first_turns if exchange is not None]
    if broken and not exchanges:
        hint = 'write [{"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}]'
        raise InputError(f"{wrong}: {broken[0]}", hint=hint)
    if not exchanges:
        raise InputError(f"the {_WHAT} `{path}` has no conversation that begins with a question and its answer")
    random.Random(f"dataset/{seed}").shuffle(exchanges)
    requests = tuple(
        DatasetRequest(question, fields={} if count is None else _length(count(answer)))
        for question, answer in exchanges
    )
    of, other = f"of {len(conversations)} conversations", len(first_turns) - len(exchanges)
    notes = [f"{other} {of} do not begin with a question and its answer, and are not sent"] if other else []
    notes += [f"{len(broken)} {of} cannot be read, and are not sent; the first: {broken[0]}"] if broken else []
    return Dataset(requests, sha256, tuple(notes))


def _exchange(conversation: object) -> tuple[str, str] | None:
    """Return the first question and its answer; None if it begins otherwise. Raises `ValueError` if it is broken."""
    if not isinstance(conversation, dict):
        raise ValueError("is not a JSON object")
    turns = next((turns for key in _TURNS if (turns := conversation.get(key))), None) or []
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns[:2]):
        raise ValueError("is not a list of turns")
    if len(turns) < 2:
        return None
    (asker, question), (answerer, answer) = (
        (turn.get("from") or turn.get("role"), turn.get("content") if turn.get("value") is None else turn["value"])
        for turn in turns[:2]
    )
    if asker not in _HUMAN or answerer not in _ANSWER or not isinstance(question, str) or not isinstance(answer, str):
        return None
    for text in (question, answer):
        FIELDS["prompt"].check(text)
    return (question, answer) if question.strip() and answer.strip() else None


def _num_whole(text: str) -> int:
    """Count the conversations before the place where JSON is malformed."""
    seen = 0

    def count(item: dict[str, object]) -> None:
        nonlocal seen
        seen += any(key in item for key in _TURNS)

    with suppress(ValueError, RecursionError):
        json.loads(text, object_hook=count)
    return seen


@dataclass(frozen=True)
class _LineReader:
    """Reads lines of requests or of a trace; `update` is called with the content of media files."""

    path: Path
    output_len: int | None
    is_chat: bool
    update: Callable[[bytes], None]

    def request(self, number: int, line: bytes) -> DatasetRequest:
        """Raises `InputError`, which names the line."""
        try:
            fields = parse_object(line)
            is_trace = "timestamp" in fields
            known = _TRACE_KEYS if is_trace else _KEYS if self.is_chat else _PLAIN_KEYS
            for key in fields:
                if key not in known:
                    hint = suggest(key, known) or f"these requests have {', '.join(known)}; see also `--extra-body`"
                    if key == "custom_id":
                        hint = "OpenAI's batch form is for `omni generate --requests`: write a `prompt` in each line"
                    raise InputError(f"unknown key `{key}`", hint=hint)
            return self._of_trace(fields) if is_trace else self._make_own_request(fields)
        except (UsageError, ValueError) as error:
            advice = error.hint if isinstance(error, UsageError) else None
            raise InputError(f"{self.path}:{number}: {error}", hint=advice) from error

    def _of_trace(self, fields: Mapping[str, Any]) -> DatasetRequest:
        for key in ("input_length", "output_length"):
            value = fields.get(key)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_TOKENS:
                raise ValueError(f"`{key}` must be a number of tokens from 1 to {MAX_TOKENS}")
        length = _length(self.output_len or fields["output_length"]) if self.is_chat else {}
        due_s = _time(fields["timestamp"], "timestamp") / 1000
        return DatasetRequest(None, fields["input_length"], fields=length, due_s=due_s)

    def _make_own_request(self, fields: Mapping[str, Any]) -> DatasetRequest:
        checked: dict[str, Any] = {}
        for key, value in fields.items():
            try:
                checked[key] = value if key == "arrival_s" else FIELDS[key].check(value)
            except ValueError as error:
                raise ValueError(f"`{key}` {error}") from error
        if "prompt" not in checked:
            raise ValueError("the key `prompt` is missing")
        own: dict[str, object] = {"seed": checked["seed"]} if "seed" in checked else {}
        for key, value in checked.get("sampling", {}).items():
            if key not in _SAMPLING:
                raise ValueError(f"`sampling.{key}` is not sent; `--extra-body` sets fields of every request")
            own[_SAMPLING[key]] = value
        if self.output_len is not None and self.is_chat:
            own |= _length(self.output_len)
        folder = self.path.parent
        parts = [read_image(folder / name, self.update) for name in checked.get("image", ())]
        parts += [read_sound(folder / name, self.update) for name in checked.get("audio", ())]
        due_s = _time(checked["arrival_s"], "arrival_s") if "arrival_s" in checked else None
        return DatasetRequest(checked["prompt"], parts=tuple(parts), fields=own, due_s=due_s)


def _length(output_len: int) -> dict[str, object]:
    return {_SAMPLING["max_tokens"]: output_len}


def _time(value: object, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
        raise ValueError(f"`{key}` must be a time, a number from 0")
    return float(value)


def read_image(path: Path, update: Callable[[bytes], None]) -> dict[str, object]:
    """Return an image file as a part of a chat message; `update` gets its bytes. Raises `ValueError`, `InputError`."""
    return image_part(*_read_media(path, "image", _IMAGES, update))


def read_sound(path: Path, update: Callable[[bytes], None]) -> dict[str, object]:
    """Return a sound file like `read_image`."""
    return sound_part(*_read_media(path, "audio", _SOUNDS, update))


def _read_media(path: Path, key: str, formats: Mapping[str, str], update: Callable[[bytes], None]) -> tuple[bytes, str]:
    media_format = formats.get(path.suffix.lower())
    if media_format is None:
        raise ValueError(f"`{key}`: `{path}` is not one of {', '.join(formats)}")
    with open_input(path, f"{key} file") as file:
        content = file.read()
    update(content)
    return content, media_format
