"""Report unusual English: `python scripts/prose_check.py [FILE...]`; by default every file that git tracks.

Reads docstrings, comments, strings, function and class names of Python files, Markdown without its code blocks (they
show output, whose words are checked in the code), HTML and YAML.
Prints `FILE:LINE: TERM: use BETTER` for each finding, with exit code 1. `prose: ok` on a line allows a legitimate use.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ALLOWED_FILES = {
    "scripts/prose_check.py": "lists the terms",
    "tests/unit/test_prose_check.py": "tests the terms",
    "omni_cli/checkpoints/tokenizer.py": "another word of the tokenizers' training text would change the checkpoints",
}
_UNIT = "client|stage|request|second|step|line|iteration|replica|token|frame|variant|block|round|page|device|item"
_COUNTED = (
    "one|once|process(?:es)?|tokens?|requests|lines?|files|bytes|copies|steps|images?|samples|rows?|entry|entries|items"
    "|units|numbers?|values?|tensors?|outputs?"
)
_NOT_A_KEY = r"""(?<![.`'"])"""  # names in JSON, which stay as long as the schema's number does
_RENAMED = "RequestCancelled, StreamAborted, DecodeError, PendingImages, stream_busy"
TERMS = {
    r"(take|takes|taking|took|in) turns": "interleaved, alternate",
    r"pictures?": "image",
    r"mend(s|ed|ing)?": "fix",
    r"ends? as asked": "ends with the expected exit code",
    r"stands|(is|are) told|says (so|what|which|how|why|whether|where|nothing)": "is listed, reports",
    r"(an?|the|any) hang|taken for dead": "considered hung",
    r"belongs? into": "belongs in",
    r"slips? of the keyboard": "typo",
    r"go(es)? away|gone away|went away|client (has|had) gone|clients? leaves?": "disconnects",
    r"hand(s|ed|ing)? (out|over|on)": "returns, passes, sends",
    r"requests? inside": "requests in flight",
    r"way to the host|way of outputs": "device-to-host output copy",
    r"com(e|es|ing) up again|came up again": "restart",
    r"reached from here": "loopback only",
    r"(?-i:Unwanted|BrokenOff|NoMessage|PicturesOnTheWay|has_company)": _RENAMED,
    rf"{_NOT_A_KEY}(un)?engage(d|s|ments?)": "execution counters, mode used",
    rf"{_NOT_A_KEY}paybacks?": "break-even point",
    rf"{_NOT_A_KEY}heats?": "batch, round",
    r"treatments?": "variant config",
    r"in vain": "is discarded",
    rf"({_COUNTED}) an? ({_UNIT})": "per",
    r"(?-i:(that|which|what) is no(ne)?)": "is not a",
    r"(breaks?|broke|broken) off": "fails",
    r"anew": "again",
    r"if absent": "Default: ...",
    r"has to be there": "expected ..., got ...",
    r"but for (?:the|a|an|those|its|their|that)": "except",
}
_TERMS = [(re.compile(rf"\b(?:{term})\b", re.IGNORECASE), better) for term, better in TERMS.items()]
_OPENING = re.compile(r"^(?:What|Whether|Whom|How)\b")


def prose_of(path: str, source: str) -> Iterator[tuple[int, str]]:
    """(line number, text) of everything that is not code."""
    if not path.endswith(".py"):
        prose = re.sub(
            r"^```.*?^```", lambda block: "\n" * block[0].count("\n"), source, flags=re.DOTALL | re.MULTILINE
        )
        yield from enumerate(prose.splitlines(), start=1)
        return
    before = ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = tokenize.tok_name[token.type]
        if kind in ("COMMENT", "STRING", "FSTRING_MIDDLE"):
            yield from enumerate(token.string.splitlines(), start=token.start[0])
        elif before in ("def", "class"):
            yield token.start[0], token.string.replace("_", " ")
        before = token.string


def findings(path: str, source: str) -> Iterator[tuple[int, str]]:
    """(line number, message) of each finding in a file."""
    lines = source.splitlines()
    for number, text in prose_of(path, source):
        if "prose: ok" not in lines[number - 1]:
            yield from ((number, f"{hit[0]}: use {better}") for term, better in _TERMS for hit in term.finditer(text))
    for node in ast.walk(ast.parse(source)) if path.endswith(".py") else ():
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for opening in _OPENING.findall((ast.get_docstring(node) or "")[:8]):
                yield node.body[0].lineno, f"docstring opens with {opening}: use a verb or a noun phrase"


def main(names: list[str]) -> int:
    """Check the files and return the exit code."""
    names = names or subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    checked = [name for name in names if name.endswith((".py", ".md", ".html", ".yaml", ".yml"))]
    found = [
        f"{name}:{number}: {message}\n"
        for name in checked
        if name not in ALLOWED_FILES and (ROOT / name).is_file()
        for number, message in sorted(findings(name, (ROOT / name).read_text(encoding="utf-8")))
    ]
    sys.stdout.writelines(found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
