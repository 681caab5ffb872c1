"""Hints lead on: each command that one suggests is a command of ours, and another one than that which failed."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_group

import omni_cli
from omni_cli.cli import app

ROOT = Path(omni_cli.__file__).parent
_COMMAND = re.compile(r"`(omni [^`]+)`")


def texts(file: Path) -> Iterator[tuple[int, str]]:
    """The strings of a file, with `X` for what is filled in."""
    parts: set[int] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.JoinedStr):
            parts |= {id(part) for part in node.values}
            filled = ("X" if isinstance(part, ast.FormattedValue) else str(part.value) for part in node.values)  # type: ignore[attr-defined]
            yield node.lineno, "".join(filled)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.lineno, node.value


def suggested() -> list[tuple[str, str]]:
    """All commands in texts of the tree, and where they are."""
    found = {
        command: f"{file.relative_to(ROOT)}:{line}"
        for file in sorted(ROOT.rglob("*.py"))
        for line, text in texts(file)
        for command in _COMMAND.findall(text)
    }
    return sorted(found.items())


@cache
def commands() -> Any:
    return get_group(app.app)


def check_parses(command: str) -> None:
    """Parse a command line with our parser, without its values: they may be placeholders."""
    words = shlex.split(command.replace("...", "").partition(" > ")[0].partition(" 2>")[0])[1:]
    node: Any = commands()
    if words and words[0] in ("--help", "--version"):
        return
    context: Any = node.context_class(node, info_name="omni")
    while hasattr(node, "commands") and words and not words[0].startswith("-"):
        name, child, words = node.resolve_command(context, words)
        context = child.context_class(child, info_name=name, parent=context)
        node = child
    # A single word that takes a value, such as `--max-requests`, names the option.
    lone = words[-1:] if words and words[-1].startswith("--") else []
    options = {name for param in node.params for name in (*param.opts, *param.secondary_opts)}
    assert set(lone) <= {*options, "--help"}
    node.make_parser(context).parse_args(args=[word for word in words if word not in lone])


@pytest.mark.parametrize(("command", "place"), suggested())
def test_every_suggested_command_is_one_of_ours(command: str, place: str) -> None:
    if command != "omni X":  # a command's own name
        check_parses(command)


def test_a_command_that_is_not_ours_is_found() -> None:
    assert len(suggested()) > 40
    for wrong in ("omni lst", "omni models lst", "omni generate --stepz", "omni bench --url X"):
        with pytest.raises(Exception, match=r"lst|stepz|url|assert"):
            check_parses(wrong)


MISTAKES = """
list | ls | rm x | pull x | run --model x | version | help | serv | hello
models ls | models rm x | models delete x | models download x | models show x | models remove no/such
profiles ls | profiles new x | profiles show no-such | profiles create --url x | history ls | history list
history rm x | generate -m x hi | generate --steps 3 hi | generate --size 512x512 hi | generate --prompt hi
generate --max-model-len 8 hi | bench --steps 3 | bench --size 3x3 | bench -m x | bench --url http://a:1
bench --margin 2%
serve -m x | serve --dtype float16 | serve no-such-word | chat -m x | chat http://127.0.0.1:1 | chat --wait 2
chat --url word | chat --url 127.0.0.1:1 | loadtest 127.0.0.1:1 | verify --url 127.0.0.1:1 | verify http://127.0.0.1:1
tune --url 127.0.0.1:1 | tune --size 2 | verify --steps 2 | profile --steps 2 | doctor -m x | compare -m | report -m
history show --history no-such | compare no-such no-such | report no-such | -m x | --model x | --versoin
"""


@pytest.mark.parametrize("line", [line.strip() for line in re.split(r"[|\n]", MISTAKES) if line.strip()])
def test_the_hint_after_a_mistake_is_another_command(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(line.split()) != 0
    _, _, hint = capsys.readouterr().err.partition("\nhint: ")
    for command in _COMMAND.findall(hint):
        check_parses(command)
        assert command.split()[1:] != line.split()
    known = {name for text in re.findall(r"`(--[\w-]+)", hint) for name in [text]}
    assert not known & set(line.split()) or "leave out" in hint, "the option that was refused is suggested"


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("generate --steps 3 hi", "`--num-inference-steps`"),
        ("bench --steps 3", "`--set STAGE.num_inference_steps=VALUE`"),
        ("generate --size 512x512 hi", "`--width PIXELS --height PIXELS`"),
        ("history ls", "`omni history show`"),
        ("profiles new x", "`omni profiles create`"),
        ("serve --max-model-len 9", "`--set STAGE.max_model_len=VALUE`"),
        ("generate --prompt hi", "leave out `--prompt`"),
        ("chat http://127.0.0.1:1", "`--url http://127.0.0.1:1`"),
        ("chat --url 127.0.0.1:1", "`--wait SECONDS`"),
        ("loadtest 127.0.0.1", "add its port"),
        ("generate --top-p 0.5 hi", "`--set STAGE.sampling.top_p=VALUE`"),
        ("generate --device cuda hi", "`--set STAGE.devices=VALUE`"),
        ("loadtest a:1 --rps 3", "`--request-rate`"),
        ("loadtest a:1 --num-prompts 3", "`--num-requests`"),
        ("bench --iterations 3", "`--num-iters`"),
        ("bench tiny-image", "`--profile tiny-image`"),
        ("serve tiny-omni", "`--profile tiny-omni`"),
        ("verify 127.0.0.1:1", "`--url 127.0.0.1:1`"),
        ("chat llama3:8b", "`omni chat --help`"),
        ("doctor --fix", "`--install`"),
        ("loadtest --base-url a:1", "leave out `--base-url`"),
        ("verify --base-url a:1", "`--url`"),
        ("verify --metric a", "`omni verify --help`"),
        ("serve -p 8000", "`--port 8000`"),
        ("chat -p 8000", "`--url http://127.0.0.1:8000`"),
        ("verify -p 8000", "`--url http://127.0.0.1:8000`"),
        ("bench -p 8000", "`omni profiles list`"),
        ("bench -p tiny-image --set image.steps=2", "`num_inference_steps`"),
        ("bench -p tiny-image --set image.oddity=2", "belong in `call`"),
        ("bench -p tiny-image --set image.size=64", "belong in `call`"),
        ("loadtest a:1 -c 4", "`--concurrency`"),
        ("loadtest a:1 --concurrency 4,8", "`--vary concurrency=4,8`"),
        ("loadtest a:1 --request-rate 4,8", "`--vary request_rate=4,8`"),
        ("loadtest a:1 --num-requests 4,8", "`omni loadtest --help`"),
        ("bench --batch-size 1,2", "`omni bench --help`"),
        ("serve --port 1,2", "`omni serve --help`"),
        ("loadtest a:1 --dataset a.jsonl", "`--requests`"),
        ("loadtest a:1 --endpoint completions", "`--endpoint`: `completions` is not one of"),
        ("loadtest a:1 --metric ttft", "`ttft_s`"),
        ("generate --num-inference-steps 2,3 hi", "`2,3` is not one number"),
        ("bisect main..HEAD~1", "`omni bisect main HEAD~1`"),
        ("bisect main..", "`omni bisect main HEAD`"),
        ("bisect main...HEAD~1", "`omni bisect main HEAD~1`"),
        ("bisect ..main", "`omni bisect HEAD main`"),
        ("bisect HEAD~1 HEAD --metric e2e", "`e2e_s`"),
        ("bench --metric talker.ttft", "`talker.ttft_s`"),
        ("bench --budget 3", "`--time-budget`"),
        ("generate --inputs", "`--help-inputs`"),
    ],
)
def test_what_is_meant(line: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(line.split()) in (2, 6)
    assert hint in capsys.readouterr().err


def test_a_folder_is_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["serve", str(tmp_path)]) == 2
    assert f"did you mean `--model {tmp_path}`?" in capsys.readouterr().err


def test_a_folder_is_a_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["history", "show", str(tmp_path)]) == 2
    assert f"did you mean `--history {tmp_path}`?" in capsys.readouterr().err
