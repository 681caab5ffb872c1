"""The `omni` command: its subcommands, and the single place that reports failures."""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, ClassVar, NoReturn

import typer
from typer.main import get_group

from omni_cli import __version__
from omni_cli import config as omni_config
from omni_cli.cli.lazy import LazyGroup
from omni_cli.cli.terminal import console, interrupts
from omni_cli.core.errors import ExitCode, OmniError, OutputError, UsageError
from omni_cli.core.files import allow_open_files, known_failure
from omni_cli.core.text import suggest

_COMPLETION = "_OMNI_COMPLETE"  # set by shells
_MAX_WORDS = 10_000  # more would take seconds to parse
# The shell's code for a program ended by SIGPIPE; 0 or 1 could be mistaken for a verdict.
_BROKEN_PIPE = 141
_OPEN_FILES = 65536  # the usual limit, 1024, is less than a server with as many clients needs

_SERVER_HINT = "`omni loadtest URL` measures a running server"
# Options that moved to another command.
_MOVED_OPTIONS = {
    "omni bench": {
        "--url": _SERVER_HINT, "--concurrency": _SERVER_HINT, "--request-rate": _SERVER_HINT, "--slo": _SERVER_HINT,
        "--margin": "`omni compare RECORD --margin PERCENT` judges a saved record again",
        "--allow-difference": "`omni compare A.json B.json --allow-difference FIELD` compares saved records",
        "--self-check": "`omni compare RECORD --self-check` checks a saved record of one variant",
        "--smaller-is-better": "`omni report RECORD --smaller-is-better FILE` writes it from a saved record",
    },
}  # fmt: skip

# Other tools' and people's words for options, and ours; a suggestion is for commands that have it.
_SYNONYMS = {
    "--steps": "--num-inference-steps", "--num-steps": "--num-inference-steps",
    "--n-frames": "--num-frames", "--frames": "--num-frames", "--cfg": "--guidance-scale",
    "--cfg-scale": "--guidance-scale", "--guidance": "--guidance-scale", "--output": "--output-dir",
    "--out": "--output-dir", "--max-new-tokens": "--max-tokens", "--temp": "--temperature",
    "--negative": "--negative-prompt", "--length": "--duration", "--seconds": "--duration", "--frame-rate": "--fps",
    "--rps": "--request-rate", "--qps": "--request-rate", "--num-prompts": "--num-requests",
    "--iterations": "--num-iters", "--warmup": "--num-iters-warmup", "--model-path": "--model", "--cmd": "--command",
    "--fix": "--install", "-f": "--requests", "--device": "--devices", "--base-url": "--url",
    "--dataset": "--requests", "--dataset-path": "--requests", "--users": "--concurrency",
    "-m": "--model", "--input": "--requests", "--tts": "--speak", "--size": "--width", "--true-cfg-scale": "--arg",
}  # fmt: skip
_USAGES = {"--size": "`--width PIXELS --height PIXELS`", "--true-cfg-scale": "`--arg true_cfg_scale=VALUE`"}


# Of those that a group of commands has, the first is meant.
_SUBCOMMANDS = {
    "ls": ("list", "show"), "list": ("show",), "rm": ("remove",), "delete": ("remove",), "download": ("pull",),
    "new": ("create",), "info": ("show", "list"), "show": ("list",),
}  # fmt: skip


class _Commands(LazyGroup):
    synonyms: ClassVar[dict[str, str]] = {
        "list": "omni models list", "ls": "omni models list", "rm": "omni models remove", "pull": "omni models pull",
        "run": "omni generate", "version": "omni --version", "help": "omni --help",
    }  # fmt: skip
    lazy_commands: ClassVar[dict[str, str]] = {
        "generate": "Run a model end to end and write its text, audio and images.",
        "chat": "Talk to a profile or a server in the terminal.",
        "serve": "Serve a model over OpenAI-compatible HTTP.",
        "bench": "Measure latency and memory, compare variants, judge a gate.",
        "loadtest": "Measure running OpenAI-compatible servers.",
        "verify": "Check outputs against the reference, and alone against batched.",
        "profile": "Record where time and memory go, in one stage or all.",
        "compare": "Compare two saved bench records and judge a gate.",
        "bisect": "Find the commit that made a benchmark slower.",
        "history": "Keep records over time and find the steps in them.",
        "tune": "Search settings for the fastest that keeps limits.",
        "report": "Show saved records as one HTML page.",
        "profiles": "List, show and check the YAML profiles.",
        "models": "Download, list, remove and build checkpoints.",
        "doctor": "Show what can run on this machine and what is missing.",
    }


class _InternalError(OmniError):
    """A bug in omni."""

    kind = "internal"


class _InterruptedError(OmniError):
    """Ctrl-C in a command that does not handle it itself."""

    kind = "interrupted"
    exit_code = ExitCode.INTERRUPTED


app = typer.Typer(
    cls=_Commands,
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(value: bool) -> None:
    if value:
        from omni_cli.core.version import read_commit

        commit = read_commit()
        console.print_text(f"omni {__version__}" + (f" ({commit[:12]})" if commit else ""))
        raise typer.Exit


@app.callback()
def omni(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Run and benchmark omni models: chains of autoregressive and diffusion stages."""


def _complete(instruction: str) -> int:
    """Print what completes the command line of a shell, or the script that makes the shell ask."""
    from typer._completion_classes import completion_init
    from typer.completion import shell_complete

    completion_init()
    return shell_complete(get_group(app), {}, "omni", _COMPLETION, instruction)


def main() -> NoReturn:
    """Run the process's command line and exit."""
    if _COMPLETION in os.environ:
        sys.exit(_complete(os.environ[_COMPLETION]))
    interrupts.install()
    allow_open_files(_OPEN_FILES)
    try:
        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # again, while the first was being reported
        code = ExitCode.INTERRUPTED
    interrupts.ignore()
    if "triton" not in sys.modules:  # it would list all that is left as leaked
        gc.freeze()  # or Python searches all that was imported for garbage before it exits
    sys.exit(code)


def run(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code; the only place that shows failures."""
    console.reset()
    # Read before parsing, because the parser itself may fail.
    flags = argv[: argv.index("--")] if "--" in argv else argv
    as_json = "--json" in flags
    verbose = "-v" in flags or "--verbose" in flags
    try:
        code = _run_command(argv, as_json=as_json, verbose=verbose)
        console.flush()
        return code
    except BrokenPipeError:
        console.drop_stdout()
        return _BROKEN_PIPE
    except OutputError as error:
        return console.report_failure(error, as_json=False, verbose=verbose)
    except KeyboardInterrupt:
        return console.report_failure(_InterruptedError("interrupted"), as_json=as_json, verbose=False)


def _run_command(argv: Sequence[str], *, as_json: bool, verbose: bool) -> int:
    try:
        if len(argv) > _MAX_WORDS:
            hint = "put requests into a file, as `--requests FILE.jsonl`"
            raise UsageError(f"the command line has {len(argv)} words; the maximum is {_MAX_WORDS}", hint=hint)
        # Not Typer's own main: it turns a broken pipe into exit code 1, which means a regression here.
        group = get_group(app)
        with group.make_context("omni", list(argv)) as context:
            result = group.invoke(context)
        interrupts.check()
        return result if isinstance(result, int) else ExitCode.OK
    except typer.Exit as stop:
        return stop.exit_code
    except BrokenPipeError as error:
        if console.is_stdout_closed():
            raise
        failure = _internal_error(error)  # some other pipe, such as one to a worker
    except typer.Abort as abort:
        raise KeyboardInterrupt from abort
    except OmniError as error:
        failure = error
    except typer.TyperException as error:
        if _is_missing_command(error) and not as_json:
            console.print_note(error.message)
            return ExitCode.USAGE
        failure = UsageError("missing command") if _is_missing_command(error) else _usage_error(error)
    except Exception as error:  # noqa: BLE001 - the last resort: whatever is expected is an OmniError
        failure = _lost_folder() or _missing_package(error) or known_failure(error) or _internal_error(error)
    if interrupts.was_interrupted():
        raise KeyboardInterrupt from failure
    return console.report_failure(failure, as_json=as_json, verbose=verbose)


def _lost_folder() -> OmniError | None:
    """Return the error to show if the current folder was deleted, after which anything may fail."""
    try:
        Path.cwd()
    except FileNotFoundError:
        return UsageError("the current folder no longer exists", hint="change to another one: `cd ~`")
    return None


def _missing_package(error: BaseException | None) -> OmniError | None:
    """Return the error to show if an installation without extras lacks a package that the command needs."""
    while error is not None and not isinstance(error, ModuleNotFoundError):
        error = error.__cause__
    package = (error.name or "").partition(".")[0] if error is not None else ""
    if package in ("", "omni_cli") or package in sys.stdlib_module_names or find_spec(package) is not None:
        return None
    failure = OmniError(
        f"this needs the package `{package}`, which is not installed",
        hint="run what `omni doctor --install` prints: it installs the extra that fits this machine",
    )
    failure.__cause__ = error
    return failure


def _internal_error(error: Exception) -> OmniError:
    from omni_cli.config.families import plugin_place

    message, hint = f"{type(error).__name__}: {error}", "run it again with `-v` and report the output"
    if place := plugin_place(error):
        failure = OmniError(f"error in a plug-in: {message} ({place})", hint="correct it; `-v` shows the traceback")
    else:
        failure = _InternalError(f"internal error: {message}", hint=f"this is a bug in omni; {hint}")
    failure.__cause__ = error
    return failure


def _is_missing_command(error: Exception) -> bool:
    """True if a group was called without a command; `error.message` is then the group's whole help."""
    return type(error).__name__ == "NoArgsIsHelpError"


def _usage_error(error: Any) -> UsageError:
    """Convert a Typer exception, with the nearest option or the command's help as its hint."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoSuchOption":
        return UsageError(f"unknown option `{error.option_name}`", hint=_option_hint(error.option_name, context))
    typed = re.match(r"No such command '(\w+)'", getattr(error, "message", ""))
    known = getattr(context and context.command, "commands", {})
    meant = next((name for name in _SUBCOMMANDS.get(typed[1], ()) if name in known), None) if typed else None
    if typed and context is not None and meant:
        hint = f"did you mean `{context.command_path} {meant}`?"
        return UsageError(f"unknown command `{typed[1]}` of `{context.command_path}`", hint=hint)
    return UsageError(_message(error), hint=_argument_hint(error, context) or _help_hint(context))


def _argument_hint(error: Any, context: Any) -> str | None:
    """Return the option whose value an argument too many is: an address, a profile, a folder of a model or records."""
    extra = re.match(r"Got unexpected extra arguments? *\(s?\)? *\((\S+)\)$", getattr(error, "message", ""))
    good, dots, bad = str(context and context.params.get("good")).partition("..")
    if dots and context is not None:
        return f"did you mean `{context.command_path} {good or 'HEAD'} {bad.lstrip('.') or 'HEAD'}`?"
    if extra is None or context is None:
        return None
    from omni_cli.config.bundled import bundled_profiles

    is_url, is_profile = re.search(r"://|^[\w.-]+:\d+(/|$)", extra[1]), extra[1] in bundled_profiles()
    folders = ["--model", "--history"] if Path(extra[1]).is_dir() else []
    names = ["--url"] if is_url else ["--profile"] if is_profile else folders
    return next((f"did you mean `{name} {extra[1]}`?" for name in names if name in _names(context)), None)


def _names(context: Any) -> list[str]:
    return [name for param in context.command.params for name in (*param.opts, *param.secondary_opts)]


def _message(error: Any) -> str:
    """Return Typer's sentence without its capital, full stop and quotation marks."""
    param = getattr(error, "param", None)
    detail = error.message.rstrip(".").removeprefix("Value error, ")
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
    """Return an option as typed, in its long form, and an argument by its placeholder."""
    if param.param_type_name == "option":
        return str(max(param.opts, key=len))
    return str(param.metavar or param.name).upper()


def _option_hint(option: str, context: Any) -> str | None:
    if context is None:
        return None
    known = [name for name in _names(context) if name.startswith("-")]
    if moved := _MOVED_OPTIONS.get(context.command_path, {}).get(option):
        return moved
    if _SYNONYMS.get(option) in known:
        return f"did you mean {_USAGES.get(option, f'`{_SYNONYMS[option]}`')}?"
    if _SYNONYMS.get(option, option).lstrip("-") in _names(context):
        return f"it is an argument: leave out `{option}`"
    if "--set" in known and (key := _key(_SYNONYMS.get(option, option))):
        return f"did you mean `--set {key}=VALUE`? `omni profiles show` prints the stages and their keys"
    suggestion = suggest(option, [*known, "--help"], cutoff=0.75)
    if suggestion is None and context.parent is None:
        return f"options of a command follow its name; see `{context.command_path} --help`"
    return suggestion or _help_hint(context)


def _key(option: str) -> str | None:
    """Return the key of profiles that has an option's name, as for `--set`."""
    name = option.lstrip("-").replace("-", "_")
    declared = "".join(file.read_text() for file in Path(omni_config.__path__[0]).glob("s*.py"))
    if f"\n    {name}: " not in declared:  # importing the declarations takes longer than the rest of the answer
        return None
    from omni_cli.config.schema import PROFILE_KEYS, STAGE_MODELS
    from omni_cli.config.stage_keys import Sampling

    if name in PROFILE_KEYS:
        return name
    if name in Sampling.model_fields:
        return f"STAGE.sampling.{name}"
    return f"STAGE.{name}" if any(name in model.model_fields for model in STAGE_MODELS.values()) else None


def _help_hint(context: Any) -> str | None:
    return f"see `{context.command_path} --help`" if context is not None else None
