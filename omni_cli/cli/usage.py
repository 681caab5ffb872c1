"""Convert Typer's errors about a command line to ours."""

from __future__ import annotations

import re
from typing import Any

from omni_cli.errors import UsageError
from omni_cli.text import suggest

_SERVER_HINT = "`omni loadtest URL` measures a running server"
# Options that moved to another command.
_MOVED = {
    "omni bench": {
        "--url": _SERVER_HINT, "--concurrency": _SERVER_HINT, "--request-rate": _SERVER_HINT, "--slo": _SERVER_HINT,
        "--margin": "`omni compare RECORD --margin PERCENT` judges a saved record again",
        "--allow-difference": "`omni compare A.json B.json --allow-difference FIELD` compares saved records",
        "--self-check": "`omni compare RECORD --self-check` checks a saved record of one variant",
        "--smaller-is-better": "`omni report RECORD --smaller-is-better FILE` writes it from a saved record",
    },
}  # fmt: skip


def is_missing_command(error: Exception) -> bool:
    """Return True if a group was called without a command; `error.message` is its whole help then."""
    return type(error).__name__ == "NoArgsIsHelpError"


def usage_error(error: Any) -> UsageError:
    """Convert a Typer exception, with the nearest option or the place to look as its hint."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoSuchOption":
        return UsageError(f"unknown option `{error.option_name}`", hint=_option_hint(error.option_name, context))
    return UsageError(_message(error), hint=_help_hint(context))


def _message(error: Any) -> str:
    """Return Typer's sentence without its capital, full stop and quotation marks."""
    param = getattr(error, "param", None)
    detail = error.message.rstrip(".")
    if param is not None and type(error).__name__ == "MissingParameter":
        text = f"missing {param.param_type_name} `{_name(param)}`"
    elif param is not None:
        context = getattr(error, "ctx", None)
        source = context and context.get_parameter_source(param.name)
        name = param.envvar if source and source.name == "ENVIRONMENT" else _name(param)
        text = f"invalid value for `{name}`: {detail[:1].lower()}{detail[1:]}"
    else:
        text = error.format_message().rstrip(".")
        text = text[:1].lower() + text[1:]
    return re.sub(r"'([^'\n]*)'", r"`\1`", text)


def _name(param: Any) -> str:
    """An option as typed (the long form), an argument by its placeholder."""
    if param.param_type_name == "option":
        return str(max(param.opts, key=len))
    return str(param.metavar or param.name).upper()


def _option_hint(option: str, context: Any) -> str | None:
    if context is None:
        return None
    known = [name for param in context.command.params for name in (*param.opts, *param.secondary_opts)]
    if moved := _MOVED.get(context.command_path, {}).get(option):
        return moved
    # Short words that only share their dashes are not typos of each other.
    suggestion = suggest(option, [*known, "--help"], cutoff=0.75)
    if suggestion is None and context.parent is None:
        return f"options of a command follow its name; see `{context.command_path} --help`"
    return suggestion or _help_hint(context)


def _help_hint(context: Any) -> str | None:
    return f"see `{context.command_path} --help`" if context is not None else None
