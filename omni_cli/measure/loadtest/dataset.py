"""`--requests FILE`: conversations (ShareGPT's JSON), our JSONL of requests, or a trace with arrival times."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
from msgspec.structs import replace

from omni_cli.config.bounds import MAX_TOKENS
from omni_cli.core.errors import InputError, UsageError
from omni_cli.core.text import suggest
from omni_cli.measure.loadtest.observations import has_prompt
from omni_cli.openai_api.media import read_image, read_sound, read_wav
from omni_cli.openai_api.routes import NAMED_ROUTES
from omni_cli.requests.fields import FIELDS, Route
from omni_cli.requests.files import open_input
from omni_cli.requests.jsonl import OUTPUT_LENGTHS, PROMPT_NAMES, check_batch_line, parse_object, read_lines

TimeUnit = Literal["seconds", "milliseconds"]

MAX_BYTES = 2**31
_WHAT = "requests file"
_ROWS = [row for row in FIELDS.values() if "loadtest" in row.lines]
_KEYS = tuple(row.name for row in _ROWS)
_PLAIN_KEYS = tuple(row.name for row in _ROWS if row.part not in ("media", "sampling"))
# Names of other tools for the same; one of each is in a line.
_SYSTEMS = ("system_prompt", "system", "prefix")
_INPUT_LENS = ("input_length", "prompt_tokens_count", "input_tokens_count")
_TIMES: Mapping[str, TimeUnit] = {
    "arrival_s": "seconds", "timestamp": "milliseconds", "relative_timestamp": "seconds",
}  # fmt: skip
_CHAT_FIELDS = ("messages", "tools", "extra")
_LEFT_OUT = ("session_id", "delay", "role", "type", "chat_id", "parent_chat_id", "turn")
# Sizes of the blocks whose hashes are `hash_ids`: that of Mooncake, and of traces with smaller ones.
_BLOCK_LENS = (512, 256, 128, 64, 32, 16, 1)
_SCALES: Mapping[TimeUnit, float] = {"seconds": 1.0, "milliseconds": 1e-3}
# Requests per second that nobody means by a trace.
_SLOWEST, _FASTEST = 1 / 60, 100.0
_SAMPLING = {row.name: row.http["chat"] for row in FIELDS.values() if row.part == "sampling" and "chat" in row.http}
_TURNS = ("conversations", "conversation", "messages")
_HUMAN, _ANSWER = ("human", "user"), ("gpt", "assistant", "chatgpt", "bing", "bard", "model")
_MAX_TOKENS = _SAMPLING["max_tokens"]


class DatasetRequest(msgspec.Struct, frozen=True):
    """`prompt` None is drawn with `input_len` words or tokens, and begins with a block for each of `hash_ids`.

    `parts` are media, as parts of a chat's content. `fields` are set in the request; those that are None are not sent.
    `due_s` is the arrival time, counted from that of the first request. `sound` is a WAV file to transcribe, its
    seconds and, if they are known, its words.
    """

    prompt: str | None = None
    input_len: int | None = None
    parts: tuple[Mapping[str, object], ...] = ()
    fields: Mapping[str, object] = msgspec.field(default_factory=dict)
    due_s: float | None = None
    hash_ids: tuple[int, ...] = ()
    sound: tuple[bytes, float, str | None] = (b"", 0.0, None)


class Dataset(msgspec.Struct, frozen=True):
    """`notes` are sentences on what of the file is not used. `sha256` covers the media, too. `block_len` is the length
    of a block of `hash_ids`."""

    requests: tuple[DatasetRequest, ...]
    sha256: str
    notes: tuple[str, ...] = ()
    block_len: int = 0

    @property
    def arrivals_s(self) -> tuple[float, ...] | None:
        """The arrival times of a trace, ascending from 0."""
        times = tuple(item.due_s for item in self.requests if item.due_s is not None)
        return times or None

    def first(self, count: int) -> Dataset:
        """Return the first `count` requests."""
        return replace(self, requests=self.requests[:count])


def read_dataset(
    path: Path,
    *,
    count_tokens: Callable[[str], int],
    output_len: int | None,
    seed: int,
    endpoint: str = "chat",
    time_unit: TimeUnit | None = None,
) -> Dataset:
    """Read a file of requests. `output_len` replaces the lengths of a file's answers, which only chats have.

    Conversations are shuffled with `seed`; other requests keep their order. `time_unit` is that of arrival times;
    without it, a file is refused whose times are unlikely to be in the unit of their key. Raises `InputError` or
    `UsageError` for the first invalid line.
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
        count = (lambda text: output_len or max(count_tokens(text), 1)) if endpoint == "chat" else None
        return _conversations(path, content, digest.hexdigest(), count, seed)
    reader = _LineReader(path, output_len, endpoint, time_unit, digest.update)
    lines = [(number, reader.request(number, line)) for number, line in read_lines(path)]
    if not lines:
        raise InputError(f"the {_WHAT} `{path}` has no requests", hint='write one per line, as {"prompt": "hello"}')
    notes = reader.notes()
    untimed = [number for number, item in lines if item.due_s is None]
    requests = [item for _, item in lines]
    if untimed and len(untimed) < len(lines):
        if not reader.turns.issuperset(untimed):
            place, timed = min(set(untimed) - reader.turns), len(lines) - len(untimed)
            message = f"{timed} of {len(lines)} requests have an arrival time; all or none must"
            raise InputError(f"{path}:{place}: it has no arrival time: {message}")
        requests = [item for item in requests if item.due_s is not None]
        notes += (
            f"{len(untimed)} of {len(lines)} lines have no time but follow an answer (`delay`), and are not sent",
        )
    requests.sort(key=lambda item: item.due_s or 0.0)
    first_s = requests[0].due_s or 0.0
    shifted = tuple(item if item.due_s is None else replace(item, due_s=item.due_s - first_s) for item in requests)
    if shifted[-1].due_s == 0:
        raise InputError(
            f"`{path}`: all requests arrive at the same time", hint="omit the times, and use `--request-rate`"
        )
    reader.check_unit(len(shifted), shifted[-1].due_s)
    blocks = [(len(item.hash_ids) - 1, item.input_len or 0) for item in shifted if item.hash_ids]
    block_len = next(size for size in _BLOCK_LENS if all(before * size < length for before, length in blocks))
    if blocks and block_len != _BLOCK_LENS[0]:
        notes += (f"the blocks of `hash_ids` are taken to be of {block_len} tokens, by the lengths of the prompts",)
    return Dataset(shifted, digest.hexdigest(), notes, block_len)


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
        DatasetRequest(question, fields={} if count is None else {_MAX_TOKENS: count(answer)})
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


@dataclass
class _LineReader:
    """Reads lines of requests, of traces and of OpenAI's batch files; `update` is called with the content of media.

    `turns` are the numbers of lines that may wait for the answer to another one.
    """

    path: Path
    output_len: int | None
    endpoint: str
    time_unit: TimeUnit | None
    update: Callable[[bytes], None]
    turns: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._is_chat = self.endpoint == "chat"
        foreign = (*PROMPT_NAMES[1:], *_INPUT_LENS, *OUTPUT_LENGTHS, *_TIMES, "hash_ids", *_LEFT_OUT)
        self._own = (*(_KEYS if self._is_chat else _PLAIN_KEYS), "arrival_s")
        self._known = (*self._own, *foreign, *((*_CHAT_FIELDS, *_SYSTEMS) if self._is_chat else ()))
        self._is_sound = self.endpoint == "transcriptions"
        if self._is_sound:
            self._own = ("request_id", "audio", "reference", "arrival_s")
            self._known = (*self._own, *_TIMES)
        self._left_out: dict[str, None] = {}
        self._time_keys: dict[str, bool] = {}  # whether any of its times has a fraction

    def request(self, number: int, line: bytes) -> DatasetRequest:
        """Raises `InputError`, which names the line."""
        try:
            fields = parse_object(line)
            if "custom_id" in fields and not self._is_sound:
                return self._read_batch_line(fields)
            for key in fields:
                if key not in self._known:
                    advice = f"these requests have {', '.join(self._own)}; see also `--extra-body`"
                    raise InputError(f"unknown key `{key}`", hint=suggest(key, self._known) or advice)
            if "delay" in fields or "session_id" in fields:
                self.turns.add(number)
            return self._read_line({key: value for key, value in fields.items() if value is not None})
        except (UsageError, ValueError) as error:
            hint = error.hint if isinstance(error, UsageError) else None
            raise InputError(f"{self.path}:{number}: {error}", hint=hint) from error

    def notes(self) -> tuple[str, ...]:
        """Return a sentence on the keys that are not used."""
        keys = ", ".join(f"`{key}`" for key in self._left_out)
        what = "each line is a request of its own to the measured model, and waits for no answer to another one"
        return (f"not used: {keys}; {what}",) if keys else ()

    def check_unit(self, count: int, span_s: float | None) -> None:
        """Raise `InputError` if the arrival times are likely to be in the other unit."""
        if self.time_unit is not None or not span_s:
            return
        rate = count / span_s
        for key, has_fractions in self._time_keys.items():
            unit = _TIMES[key]
            other: TimeUnit = "seconds" if unit == "milliseconds" else "milliseconds"
            is_fast = rate > _FASTEST or (has_fractions and rate / 1000 > _SLOWEST)
            if is_fast if unit == "milliseconds" else rate < _SLOWEST:
                fractions = ", with fractions" if has_fractions else ""
                message = f"`{key}` looks like {other}: in {unit}, these are {rate:.4g} requests per second{fractions}"
                hint = f"say which unit it is: `--time-unit {other}` or `--time-unit {unit}`"
                raise InputError(f"`{self.path}`: {message}", hint=hint)

    def _read_batch_line(self, fields: Mapping[str, Any]) -> DatasetRequest:
        _, body = check_batch_line(fields, (NAMED_ROUTES[self.endpoint],))
        needed = FIELDS["prompt"].http[cast("Route", self.endpoint)]
        if needed not in body:
            raise ValueError(f"the key `{needed}` of `body` is missing")
        if self._is_chat:
            _check_messages(body)
        self._left_out |= dict.fromkeys(body.keys() & {"model"})
        own = {key: value for key, value in body.items() if key not in ("model", "stream", "stream_options")}
        if self._is_chat and self.output_len is not None:
            own |= {"max_tokens": None, _MAX_TOKENS: self.output_len}
        elif self._is_chat:
            # Its answers are as long as they become without `ignore_eos`, up to a maximum of its own.
            own = {_MAX_TOKENS: None, "ignore_eos": None, **own}
        return DatasetRequest("", fields=own)

    def _read_line(self, fields: Mapping[str, Any]) -> DatasetRequest:
        own = {key: _check(key, value) for key, value in fields.items() if key in FIELDS and key in self._own}
        if self._is_sound:
            return self._read_sound_line(fields, own)
        prompt_key, prompt = _only(fields, (*PROMPT_NAMES, "messages"))
        unused = _LEFT_OUT if prompt is None else (*_LEFT_OUT, "hash_ids")
        self._left_out |= dict.fromkeys(key for key in fields if key in unused)
        messages_key, system = _only(fields, ("messages", *_SYSTEMS))
        time_key, due = _only(fields, tuple(_TIMES))
        input_len, output_len = (_read_length(*_only(fields, names)) for names in (_INPUT_LENS, OUTPUT_LENGTHS))
        if prompt is None and (input_len is None or system is not None):
            raise ValueError("the key `prompt` is missing, or `input_length` to generate one")
        sent: dict[str, object] = {"seed": own["seed"]} if "seed" in own else {}
        for key, value in own.get("sampling", {}).items():
            if key not in _SAMPLING:
                raise ValueError(f"`sampling.{key}` is not sent; `--extra-body` sets fields of every request")
            sent[_SAMPLING[key]] = value
        if self._is_chat and (length := self.output_len or output_len) is not None:
            sent[_MAX_TOKENS] = length
        if "messages" in fields:
            _check_messages(fields)
        for key, kind in {"tools": list, "extra": dict}.items():
            if not isinstance(fields.get(key, kind()), kind):
                raise ValueError(f"`{key}` must be a {'list' if kind is list else 'JSON object'}")
        sent |= {key: fields[key] for key in ("messages", "tools") if key in fields} | fields.get("extra", {})
        prompt = None if prompt is None else _check("prompt", "" if prompt_key == "messages" else prompt, prompt_key)
        if system is not None and prompt_key != "messages":
            texts = {"system": _check("prompt", system, "system"), "user": prompt}
            sent["messages"] = [{"role": role, "content": text} for role, text in texts.items()]
        folder = self.path.parent
        parts = [read_image(folder / name, self.update) for name in own.get("image", ())]
        parts += [read_sound(folder / name, self.update) for name in own.get("audio", ())]
        if parts and messages_key is not None:
            raise ValueError(f"`{messages_key}` and media in files exclude each other")
        due_s = None if time_key is None else self._read_time(time_key, due)
        hashes = () if prompt is not None else _read_hashes(fields.get("hash_ids", []), input_len or 0)
        return DatasetRequest(prompt, input_len, tuple(parts), sent, due_s, hashes)

    def _read_sound_line(self, fields: Mapping[str, Any], own: Mapping[str, Any]) -> DatasetRequest:
        path, *others = own.get("audio") or ("",)
        if not path or others:
            raise ValueError('a transcription has one file: {"audio": "speech.wav", "reference": "its words"}')
        sound = *read_wav(self.path.parent / path, self.update), own.get("reference")
        time_key, due = _only(fields, tuple(_TIMES))
        return DatasetRequest("", due_s=None if time_key is None else self._read_time(time_key, due), sound=sound)

    def _read_time(self, key: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
            raise ValueError(f"`{key}` must be a time, a number from 0")
        self._time_keys[key] = self._time_keys.get(key, False) or value != int(value)
        return value * _SCALES[self.time_unit or _TIMES[key]]


def _check(key: str, value: object, name: str | None = None) -> Any:
    try:
        return FIELDS[key].check(value)
    except ValueError as error:
        raise ValueError(f"`{name or key}` {error}") from error


def _check_messages(fields: Mapping[str, Any]) -> None:
    if not has_prompt(fields):
        raise ValueError("`messages` must be a list of JSON objects, and not empty")


def _only(fields: Mapping[str, Any], names: Sequence[str]) -> tuple[str | None, Any]:
    """Return the key of `fields` that is one of `names`, and its value."""
    keys = [name for name in names if name in fields]
    if len(keys) > 1:
        raise ValueError(f"`{keys[0]}` and `{keys[1]}` exclude each other")
    return (keys[0], fields[keys[0]]) if keys else (None, None)


def _read_length(key: str | None, value: object) -> int | None:
    if key is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_TOKENS:
        raise ValueError(f"`{key}` must be a number of tokens from 1 to {MAX_TOKENS}")
    return value


def _read_hashes(value: object, input_len: int) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise ValueError("`hash_ids` must be a list of whole numbers")
    if len(value) > input_len:
        raise ValueError(f"`hash_ids` has {len(value)} blocks for a prompt of {input_len} tokens")
    return tuple(value)
