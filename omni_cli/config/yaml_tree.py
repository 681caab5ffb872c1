"""Parse YAML into plain data with the position of every key and value, and write it; accepts only harmless YAML.

Scalars follow YAML 1.2's core schema, as editors read them: `no` and dates are text, `1e-3` is a number. Anchors,
aliases, merge keys, tags and a second document are rejected, so that a file has no hidden meaning.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.events import (
    AliasEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)
from yaml.reader import Reader

from omni_cli.config.diagnostics import Diagnostic, Location, SourceText
from omni_cli.core.text import visible

TreePath = tuple[str | int, ...]

MAX_BYTES = 64 * 1024
_MAX_DEPTH = 20
_MAX_DIGITS = 40
PROFILE_EXAMPLE = "see `omni profiles show tiny-omni` for one"

_INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_TOKEN = re.compile(r"[^\s,\[\]{}]*")
_SURROGATE = re.compile("[\ud800-\udfff]")
_SPECIAL = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True,
    "false": False, "False": False, "FALSE": False,
    ".inf": float("inf"), "+.inf": float("inf"), "-.inf": float("-inf"), ".nan": float("nan"),
}  # fmt: skip


@dataclass
class Tree:
    """`data` is None unless the text held a mapping; `faulty` are paths whose value was already rejected."""

    data: dict[str, object] | None
    keys: dict[TreePath, Location] = field(default_factory=dict)
    values: dict[TreePath, Location] = field(default_factory=dict)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    faulty: set[TreePath] = field(default_factory=set)
    quoted: set[TreePath] = field(default_factory=set)

    def location(self, path: TreePath) -> Location:
        """Return the location of the value at `path`, else of its key, else of its nearest parent."""
        while path:
            location = self.values.get(path) or self.keys.get(path)
            if location is not None:
                return location
            path = path[:-1]
        return self.values[()]

    def key_location(self, path: TreePath) -> Location:
        return self.keys.get(path) or self.location(path)

    def refuse(self, location: Location, message: str, hint: str | None = None) -> None:
        self.diagnostics.append(Diagnostic(location, message, hint))


def has_characters_only(text: str) -> bool:
    """True if `text` can be written as UTF-8, unlike half of a surrogate pair (`"\\ud800"`)."""
    return text.isascii() or _SURROGATE.search(text) is None


def find_unprintable(text: str) -> tuple[int, str] | None:
    """Return the index of the first character that YAML does not allow, and a message that names it."""
    match = Reader.NON_PRINTABLE.search(text)
    return match and (match.start(), f"the character U+{ord(match.group()):04X} is not allowed in YAML")


def parse_scalar(text: str) -> object:
    """Parse a plain (unquoted) scalar: None, bool, int, float or str."""
    if text in _SPECIAL:
        return _SPECIAL[text]
    if len(text) <= _MAX_DIGITS:
        if _INTEGER.fullmatch(text):
            return int(text, 0) if text.startswith("0") and text[1:2] in "ox" and len(text) > 1 else int(text)
        if _FLOAT.fullmatch(text):
            return float(text)
    return text


def parse_yaml(source: SourceText, text: str, *, kind: str = "profile", example: str = PROFILE_EXAMPLE) -> Tree:
    """Read one YAML document; every mistake becomes a diagnostic of the tree, none is raised.

    Messages name the `kind` of file, and `example` is the hint for one without a mapping.
    """
    tree = Tree(None, values={(): Location(source)})
    reader = _TreeReader(source, tree, kind)
    unprintable = find_unprintable(text)
    if unprintable is not None:
        index, message = unprintable
        tree.refuse(source.location_after(text[:index]), message, "remove it")
        return tree
    try:
        data = reader.read(text)
    except _Stop:
        return tree
    except yaml.MarkedYAMLError as error:
        tree.diagnostics.append(_syntax_diagnostic(source, error))
        return tree
    except (yaml.YAMLError, ValueError, OverflowError):
        # PyYAML passes escapes to chr() and version numbers to int() unchecked.
        tree.refuse(reader.here(), "not valid YAML: an escape or a number is out of range")
        return tree
    if isinstance(data, dict):
        tree.data = data
    elif () not in tree.faulty:
        what = "empty" if data is None else "not a mapping"
        tree.refuse(tree.values[()], f"the {kind} is {what}", example)
    return tree


class _Stop(Exception):
    """Reading cannot continue; the diagnostic is in the tree."""


class _TreeReader:
    """Builds the tree from PyYAML's events, which take little memory and resolve nothing."""

    def __init__(self, source: SourceText, tree: Tree, kind: str) -> None:
        self.source = source
        self.tree = tree
        self.kind = kind
        self.loader: Any = None

    def read(self, text: str) -> Any:
        self.loader = yaml.SafeLoader(text)
        self.loader.get_event()
        if self.loader.check_event(StreamEndEvent):
            return None
        self.loader.get_event()
        data = self._node((), 0)
        self.loader.get_event()
        if not self.loader.check_event(StreamEndEvent):
            mark = self.loader.peek_event().start_mark
            self.tree.refuse(self._at(mark, 3), f"a {self.kind} is one YAML document; a second one starts here")
        return data

    def here(self) -> Location:
        mark = self.loader.get_mark() if self.loader is not None else None
        return Location(self.source) if mark is None else self._at(mark, 1)

    def _node(self, path: TreePath | None, depth: int) -> Any:
        """Read the next value; `path` None only skips it."""
        event = self.loader.get_event()
        if isinstance(event, AliasEvent):
            self._refuse_value(path, event, "an alias", "write the value out")
            return None
        if event.anchor is not None:
            self.tree.refuse(
                self._at(event.start_mark, len(event.anchor) + 1),
                f"an anchor (`&{visible(event.anchor, 40)}`) is not allowed in a {self.kind}",
                "write the value out where it is needed",
            )
        if event.tag is not None:
            self._refuse_value(path, event, "a tag", f"a {self.kind} holds plain values only")
        if depth > _MAX_DEPTH:
            self.tree.refuse(self._span(event), f"nested more than {_MAX_DEPTH} levels deep")
            raise _Stop
        if isinstance(event, ScalarEvent):
            return self._scalar(path, event)
        if path is not None and (path == () or event.flow_style):
            self.tree.values[path] = self._span(event)
        if isinstance(event, SequenceStartEvent):
            return self._sequence(path, depth)
        assert isinstance(event, MappingStartEvent)
        return self._mapping(path, depth)

    def _scalar(self, path: TreePath | None, event: ScalarEvent) -> object:
        is_plain = event.style is None
        if not has_characters_only(event.value):
            self._refuse_value(path, event, "a lone surrogate", "write the character itself")
            return None
        if path is not None:
            if event.value or not is_plain:
                self.tree.values[path] = self._span(event)
            if not is_plain:
                self.tree.quoted.add(path)
        return parse_scalar(event.value) if is_plain else event.value

    def _sequence(self, path: TreePath | None, depth: int) -> list[Any]:
        items: list[Any] = []
        while not self.loader.check_event(SequenceEndEvent):
            items.append(self._node(None if path is None else (*path, len(items)), depth + 1))
        self.loader.get_event()
        return items

    def _mapping(self, path: TreePath | None, depth: int) -> dict[str | int, Any]:
        mapping: dict[str | int, Any] = {}
        while not self.loader.check_event(MappingEndEvent):
            key = self._key(path, mapping, depth)
            value = self._node(None if path is None or key is None else (*path, key), depth + 1)
            if key is not None:
                mapping[key] = value
        self.loader.get_event()
        return mapping

    def _key(self, path: TreePath | None, mapping: dict[str | int, Any], depth: int) -> str | int | None:
        """Read the next key, which may be a number, but not as a profile's own key; None if its value is dropped."""
        event = self.loader.peek_event()
        if not isinstance(event, ScalarEvent):
            self.tree.refuse(self._span(event), "a key must be a word, not an alias, a list or a mapping")
            self._node(None, depth + 1)
            return None
        location = self._span(event)
        self._node(None, depth)
        key: str | int = event.value
        if not has_characters_only(event.value):
            return None
        if key == "<<" and event.style is None:
            self.tree.refuse(location, f"a merge key (`<<`) is not allowed in a {self.kind}", "write the keys out")
            return None
        is_profiles = not path or (path[0] == "stages" and path[2:3] != ("call",))
        number = parse_scalar(event.value) if event.style is None and not is_profiles else None
        if isinstance(number, int) and not isinstance(number, bool):
            key = number
        if key in mapping:
            first = self.tree.keys.get((*(path or ()), key), location)
            is_stage = path == ("stages",)
            self.tree.refuse(
                location,
                f"duplicate {'stage' if is_stage else 'key'} `{visible(str(key))}`",
                f"the first one is on line {first.line + 1}",
            )
            return None
        if path is not None:
            self.tree.keys[(*path, key)] = location
        return key

    def _refuse_value(self, path: TreePath | None, event: Any, what: str, hint: str) -> None:
        mark = event.start_mark
        line = self.source.lines[mark.line] if mark.line < len(self.source.lines) else ""
        match = _TOKEN.match(line, mark.column)
        token = "" if match is None else match[0]
        location = self._at(mark, len(token))
        self.tree.refuse(location, f"{what} (`{visible(token, 40)}`) is not allowed in a {self.kind}", hint)
        if path is not None:
            self.tree.faulty.add(path)

    def _span(self, event: Any) -> Location:
        """Return an event's first line from its start to its end; for a block collection only the first character."""
        start, end = event.start_mark, event.end_mark
        if end.line == start.line:
            return self._at(start, end.column - start.column)
        rest = self.source.lines[start.line][start.column :] if start.line < len(self.source.lines) else ""
        return self._at(start, len(rest.rstrip()))

    def _at(self, mark: yaml.Mark, length: int) -> Location:
        return Location(self.source, mark.line, mark.column, max(length, 1))


def _syntax_diagnostic(source: SourceText, error: yaml.MarkedYAMLError) -> Diagnostic:
    mark = error.problem_mark or error.context_mark
    location = Location(source) if mark is None else Location(source, mark.line, mark.column)
    if location.line >= len(source.lines) or (location.line and not source.lines[location.line]):
        # At the end of the file, point behind the last text instead.
        last = max((number for number, line in enumerate(source.lines) if line.strip()), default=0)
        location = Location(source, last, len(source.lines[last].rstrip()))
    problem = error.problem or "cannot be read"
    if "'\\t'" in problem:
        return Diagnostic(location, "a tab cannot indent YAML", "use spaces")
    hint = None
    if "mapping values are not allowed" in problem:
        hint = "quote a string that contains `: `, and check the indentation"
    context = f" {error.context}" if error.context else ""
    return Diagnostic(location, f"not valid YAML: {visible(problem)}{visible(context)}", hint)


# Line breaks in YAML, which a reader folds unless they are escaped.
_LINE_BREAKS = "\x85\u2028\u2029"


class _Dumper(yaml.SafeDumper):
    """Quotes a text only if YAML 1.1 or 1.2 would read something else; never writes anchors."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _represent_text(dumper: _Dumper, value: str) -> yaml.Node:
    style = None if parse_scalar(value) == value else "'"
    if any(character in value for character in _LINE_BREAKS):
        style = '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


def _represent_float(dumper: _Dumper, value: float) -> yaml.Node:
    # Python's shortest form always has a dot or an exponent, and 1.2 reads both as a float.
    text = repr(value)
    if "e" in text and "." not in text:
        text = text.replace("e", ".0e")
    return dumper.represent_scalar("tag:yaml.org,2002:float", text)


_Dumper.add_representer(str, _represent_text)
_Dumper.add_representer(float, _represent_float)


def to_yaml(data: object) -> str:
    """Dump `data` of mappings, lists and scalars as block-style YAML in its own order."""
    return str(yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100))
