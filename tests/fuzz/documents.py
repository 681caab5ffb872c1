"""Damage to trees of mappings, lists and scalars, to the text that they become, and to its bytes."""

from __future__ import annotations

import copy
import json
import random
import re
from typing import Any

# What no JSON or YAML library would write; is its own text.
RAW = [
    "NaN",
    "Infinity", "-Infinity", "1e999", "-1e999", "9" * 400, "-0", "1e-400", "01", "0x10", "1_000", "+1", ".5",
    "1.7976931348623157e308", "5e-324", "[" * 2000, "[" * 30 + "]" * 30, '{"a":' * 60 + "1" + "}" * 60, '"\\ud800"',
    '"\\u0000"', '"unfinished', "'", "truee", "nul", "&a [*a, *a]", "*a", "!!python/object:os.system x", "<<", "? x",
    "|\n", "~", "", '{"a": 1, "a": 2}', "2026-11-20", "-", "@", "`",
]  # fmt: skip
ODD = [
    None, True, False, 0, -1, 1, 2**31, 2**53 + 1, 2**63, 2**64, -(2**63), 10**30, 10**40, 1e31, 1e308,
    5e-324, -0.0, 0.1,
    float("nan"), float("inf"), "", "x", "0", "a" * 5000, "日本", "\x00\x1b[31m", "\u202e", "</script>", "5%", [], {},
    [None], [[]], {"a": {}}, [1, "a", None], {"": 0}, "ar", "eager", "thinker", "omni.bench/1", "e2e_s",
]  # fmt: skip
PIECES = [b"", b"\x00", b"\xff", b"\xfe\xff", b"\xef\xbb\xbf", b"\r", b"\x85", b"\xe2\x80\xa8",
b"\xed\xa0\x80", b",", b":",
          b"{", b"}", b"[", b"]", b'"', b"'", b"\n", b"\t", b"#", b"%", b"\\", b"9" * 60, b"e9", b"-",
          b"null"]  # fmt: skip
_RAW_MARK = re.compile(r'"@raw:(\d+)@"')


def mutate(rng: random.Random, document: Any) -> Any:
    """`document` with one to five values or keys changed, lost, doubled or moved; it may be changed in place."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
        parent, key = _somewhere(rng, document)
        if parent is None:
            return odd(rng) if rng.random() < 0.3 else document
        how = int(rng.random() * 8)
        if how <= 3:
            parent[key] = odd(rng)
        elif how == 4:
            del parent[key]
        elif how == 5 and isinstance(parent, dict):
            parent[rng.choice((str(key) + "x", str(key)[:-1], rng.choice(list(parent)), str(odd(rng))[:300]))] = parent[
                key
            ]
        elif how == 5:
            parent.insert(rng.randint(0, len(parent)), parent[key])
        elif how == 6:
            other, place = _somewhere(rng, document)
            if other is not None:
                parent[key] = json.loads(json.dumps(other[place]))
        elif isinstance(parent[key], int | float) and not isinstance(parent[key], bool):
            value = parent[key]
            parent[key] = rng.choice(
                (-value, value + 1, value * 1e6, value / 1e6, value // 3, str(value), value * 1e300)
            )
        else:
            parent[key] = [parent[key]]
    return document


def odd(rng: random.Random) -> Any:
    """A value that hardly belongs anywhere."""
    return f"@raw:{rng.randrange(len(RAW))}@" if rng.random() < 0.15 else copy.deepcopy(rng.choice(ODD))


def json_text(document: Any) -> str:
    return _with_raw(json.dumps(document))


def yaml_text(document: Any) -> str:
    """Block style, as people write profiles."""
    return _with_raw("\n".join(_block(document, 0)) + "\n")


def damage(rng: random.Random, content: bytes) -> bytes:
    """Cuts, insertions and doubled or lost lines anywhere."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randint(0, len(content))
        how = int(rng.random() * 6)
        if how == 0:
            content = content[:at]
        elif how <= 2:
            content = content[:at] + rng.choice(PIECES) + content[at + rng.choice((0, 0, 1, 8)) :]
        elif how == 3 and content:
            at %= len(content)
            content = content[:at] + bytes([rng.randint(0, 255)]) + content[at + 1 :]
        else:
            lines = content.splitlines(keepends=True) or [b""]
            line = rng.randrange(len(lines))
            lines[line : line + 1] = [] if how == 4 else [lines[line]] * 2
            content = b"".join(lines)
    return content


def _somewhere(rng: random.Random, document: Any) -> tuple[Any, Any]:
    """A container and the key of something in it; (None, None) where there is none."""
    parent, key, node = None, None, document
    while isinstance(node, dict | list) and node and (parent is None or rng.random() < 0.8):
        parent = node
        key = rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
        node = node[key]
    return parent, key


def _block(node: Any, depth: int) -> list[str]:
    indent = "  " * depth
    if isinstance(node, dict) and node:
        lines = []
        for key, value in node.items():
            inner = _block(value, depth + 1)
            nested = isinstance(value, dict | list) and value
            lines += (
                [f"{indent}{_scalar(str(key))}:", *inner] if nested else [f"{indent}{_scalar(str(key))}: {inner[0]}"]
            )
        return lines
    if isinstance(node, list) and node:
        return [f"{indent}- {json.dumps(item)}" for item in node]
    return [_scalar(node) if isinstance(node, str) else json.dumps(node)]


def _scalar(text: str) -> str:
    plain = re.fullmatch(r"[A-Za-z][\w ./-]*", text) and text not in ("null", "true", "false")
    return text if plain else json.dumps(text)


def _with_raw(text: str) -> str:
    return _RAW_MARK.sub(lambda found: RAW[int(found[1])], text)


def bombs() -> list[bytes]:
    """Whole files that are there to cost time or memory."""
    aliases = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )
    return [
        aliases.encode(), b"[" * 60_000, b"{" * 60_000, b"- " * 30_000, b"a: " * 20_000, b'{"a":' * 12_000,
        b"? " * 30_000,
        b"'" * 60_000, b'"' + b"\\" * 60_000, b"#" * 65_000, b"a" * 65_000, b"a: " + b"9" * 60_000, b"\n" * 65_000,
        b"&a " * 20_000, b"!x " * 20_000, b"*a\n" * 20_000, b"a: 1\n" * 12_000, b"%YAML 9.9\n" * 6_000,
        b"---\n" * 16_000,
        b"".join(b"k%d: 1\n" % number for number in range(6_000)), b"stages: {" + b"a: {kind: ar}, " * 4_000 + b"}",
        b"stages:\n" + b"".join(b"  s%d: {kind: ar, input: s%d}\n" % (n, n + 1) for n in range(1_800)),
        "version: 1\nname: é".encode("utf-16"), "version: 1\n".encode("utf-32"), b"\x00" * 1000, b"\xff" * 1000, b"",
        b" ", b"\xef\xbb\xbf", b"a" * 70_000, b"null", b"[]", b"{}", b'""', b"0", b"[1,2]" * 9_000, b"1" * 60_000,
        b'{"schema": "omni.bench/1"}', b'{"schema": ["omni.bench/1"]}', b'{"schema": "omni.bench/9", "x": 1}',
        b"[" + b"1," * 30_000 + b"1]", b'{"prompt": ' + b"[" * 900 + b"]" * 900 + b"}",
        b'"' + b"\\u0000" * 10_000 + b'"',
        b"-1e" + b"9" * 60_000, b"{" + b",".join(b'"%d": 0' % number for number in range(5_000)) + b"}",
    ]  # fmt: skip
