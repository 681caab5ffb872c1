"""A Typer group that imports a command only when it is called, so that `omni --help` stays fast."""

from __future__ import annotations

import functools
import inspect
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin, get_type_hints

import typer
from typer._coercion import build_runtime_param
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from omni_cli.core.errors import UsageError
from omni_cli.core.text import suggest

DECLARATION = "declaration"
"""Typer's declaration of an option, in the metadata of its field."""
_NUMBERS = {int: re.compile(r"-?\d{1,30}"), float: re.compile(r"-?\d{1,30}(\.\d{1,30})?")}
_PATH_RULES = ("exists", "resolve_path", "allow_dash", "path_type")


class LazyGroup(TyperGroup):
    """Lists its commands from a table; a subclass sets `lazy_commands`, with their lines in the help, and `synonyms`
    with what is meant."""

    lazy_commands: ClassVar[dict[str, str]] = {}
    synonyms: ClassVar[dict[str, str]] = {}

    def make_parser(self, ctx: Any) -> Any:
        return _parser_of_single_options(super().make_parser, ctx)

    def list_commands(self, ctx: object) -> list[str]:
        return list(self.lazy_commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return _load(cmd_name) if cmd_name in self.lazy_commands else None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self.lazy_commands.items()))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.lazy_commands and not args[0].startswith("-"):
            meant = self.synonyms.get(args[0])
            hint = f"did you mean `{meant}`?" if meant else suggest(args[0], self.lazy_commands)
            raise UsageError(f"unknown command `{args[0]}`", hint=hint or "see `omni --help`")
        return super().resolve_command(ctx, args)


class _Command(TyperCommand):
    """Groups options by `rich_help_panel` in its help, which Typer does with Rich only."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            line = param.get_help_record(ctx)
            if line is not None:
                default = "Arguments" if param.param_type_name == "argument" else "Options"
                sections.setdefault(getattr(param, "rich_help_panel", None) or default, []).append(line)
        for title, lines in sections.items():
            if lines:
                with formatter.section(title):
                    formatter.write_dl(lines)


def with_single_parameters(command: Callable[..., Any]) -> Callable[..., Any]:
    """Convert a command for Typer: the fields of its options become parameters, those of base classes last."""
    given = inspect.signature(command, eval_str=True).parameters
    owners: dict[str, Any] = {name: one.annotation for name, one in given.items() if is_dataclass(one.annotation)}

    def call(**values: Any) -> Any:
        for name, owner in owners.items():
            values[name] = owner(**{field.name: values.pop(field.name) for field in fields(owner)})
        return command(**values)

    parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for name, one in given.items() if name not in owners]
    parameters += [parameter for owner in owners.values() for parameter in _parameters(owner)]
    call.__doc__ = command.__doc__
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what `inspect` asks for
    return call


def command_group(summary: str, **commands: Callable[..., Any]) -> typer.Typer:
    """Return a command that has others, by their names."""
    group = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
    group.callback(help=summary)(lambda: None)
    for name, command in commands.items():
        group.command(name)(with_single_parameters(command))
    return group


def _parameters(options: Any) -> list[inspect.Parameter]:
    kinds = get_type_hints(options, include_extras=True)
    ordered = dict.fromkeys(name for owner in options.__mro__ for name in vars(owner).get("__annotations__", ()))
    declared = {field.name: field for field in fields(options)}
    return [_parameter(declared[name], kinds[name]) for name in ordered]


def _parameter(field: Field[Any], kind: Any) -> inspect.Parameter:
    annotation = Annotated[kind, field.metadata[DECLARATION]] if DECLARATION in field.metadata else kind
    default = inspect.Parameter.empty if field.default is MISSING else field.default
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _load(name: str) -> Any:
    """Import one command, a function or a `typer.Typer` of its own name in its module or in `command` of its package;
    with plain-text help: Rich's help takes longer than the rest of `--help`."""
    module = import_module(f"omni_cli.cli.{name}")
    target = getattr(module if hasattr(module, name) else import_module(f"{module.__name__}.command"), name)
    if isinstance(target, typer.Typer):
        target.rich_markup_mode = None
        parser: Any = get_group(target)
    else:
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(name, cls=_Command)(with_single_parameters(target))
        parser = get_command(single)
    parser.name = name
    for node in (parser, *getattr(parser, "commands", {}).values()):
        node.make_parser = functools.partial(_parser_of_single_options, node.make_parser)
    return parser


@dataclass(frozen=True)
class _LateConversion:
    """Converts a parameter's value; only one that has to be checked gets Typer's adapter, which imports pydantic."""

    param: Any

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        kind, rules = self.param.type_descriptor.annotation, self.param.type_descriptor.parameter_info
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        is_plain = rules.parser is None and rules.min is None and rules.max is None and not isinstance(value, bytes)
        if is_plain and kind in (str, int, float, Path) and type(value) is kind:
            return value
        if is_plain and kind is Path and not any(getattr(rules, name) for name in _PATH_RULES):
            return Path(value)
        if is_plain and kind == list[str] and all(type(item) is str for item in value):
            return list(value)
        if kind in _NUMBERS and isinstance(value, str) and rules.parser is None and _NUMBERS[kind].fullmatch(value):
            number = kind(value)
            if (rules.min is None or number >= rules.min) and (rules.max is None or number <= rules.max):
                return number
        if get_origin(kind) is Literal and value in get_args(kind):
            return value
        if kind in _NUMBERS and "," in str(value):
            varied = next((other.help for other in ctx.command.params if "--vary" in other.opts), "")
            can_vary = f"`{param.name}`" in varied
            hint = f"`--vary {param.name}={value}` compares several" if can_vary else f"see `{ctx.command_path} --help`"
            raise UsageError(f"invalid value for `{max(param.opts, key=len)}`: `{value}` is not one number", hint=hint)
        return build_runtime_param(self.param.type_descriptor).coerce(value, param=param, ctx=ctx)


def _parser_of_single_options(make_parser: Callable[[Any], Any], context: Any) -> Any:
    """Return a command's parser, which refuses a second value of an option that keeps one: Typer drops the first."""
    for param in context.command.get_params(context):
        param._runtime_param = _LateConversion(param)
    parser = make_parser(context)
    parse = parser.parse_args

    def parse_args(args: list[str]) -> Any:
        parsed = parse(args=args)
        for option, count in Counter(parsed[2]).items():
            repeats = option.param_type_name != "option" or option.multiple
            if count > 1 and not repeats and (option.secondary_opts or not option.is_flag):
                raise UsageError(f"`{max(option.opts, key=len)}` is given twice", hint="remove one of them")
        return parsed

    parser.parse_args = parse_args
    return parser
