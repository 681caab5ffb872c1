"""Options of the commands, each declared once.

A command takes a frozen dataclass; each field is an option or argument, annotated with its declaration. `lazy` makes
Typer's parameters of them. Options that several commands have are fields of a base class, or types for a field.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.models import ArgumentInfo, OptionInfo

from omni_cli.config.bounds import NUM_RANDOM_SEEDS
from omni_cli.config.bundled import bundled_profiles

DEFAULT_PROFILE = "tiny-omni"


def option(flags: str, metavar: str | None, help_text: str, **rules: Any) -> OptionInfo:
    """Declare an option; `flags` are its names, separated by spaces."""
    declared: OptionInfo = typer.Option(*flags.split(), metavar=metavar, help=help_text, **rules)
    return declared


def argument(metavar: str, help_text: str) -> ArgumentInfo:
    declared: ArgumentInfo = typer.Argument(metavar=metavar, help=help_text)
    return declared


def positive_seconds(value: float | None) -> float | None:
    if value is not None and not (math.isfinite(value) and value > 0):
        raise typer.BadParameter("expected a number of seconds greater than 0")
    return value


def _profile_names(begun: str) -> list[str]:
    """Return the bundled profiles that complete a word in a shell."""
    return [name for name in bundled_profiles() if name.startswith(begun)]


ProfileOption = Annotated[
    str | None,
    option(
        "--profile -p",
        "NAME|PATH",
        f"A bundled profile by name, or a YAML file. Default: derived from `--model`, else {DEFAULT_PROFILE}.",
        autocompletion=_profile_names,
    ),
]
ModelOption = Annotated[
    str | None,
    option(
        "--model",
        "DIR|REPO",
        "Checkpoint: a folder or a Hugging Face repo id. With `--profile`, it replaces the profile's model.",
    ),
]
SetOption = Annotated[
    list[str] | None,
    option("--set", "[STAGE.]KEY=VALUE", "Set a key of the profile; `null` removes the key. Repeatable."),
]


LoraOption = Annotated[
    list[str] | None,
    option(
        "--lora",
        "NAME=DIR",
        "LoRA adapter of the first stage; for pipelines of diffusers also `NAME=DIR@SCALE`. Requests use the only one; "
        "of several, a request line names one by `lora`. In a server, `model` names one. Repeatable.",
    ),
]


def parse_seed(text: str) -> int:
    """Parse a seed; `random` draws one."""
    if text == "random":
        return secrets.randbelow(NUM_RANDOM_SEEDS)
    try:
        return int(text)
    except ValueError as error:
        raise typer.BadParameter("expected a whole number or `random`") from error


SeedOption = Annotated[
    int | None,
    option("--seed", "N|random", "Seed. Default: the profile's, else 0; `random` draws one.", parser=parse_seed),
]
JsonOption = Annotated[bool, option("--json", None, "Print exactly one JSON document on stdout, and nothing else.")]
OutputDirOption = Annotated[Path, option("--output-dir -o", "DIR", "Folder for output files.")]
TimeoutOption = Annotated[
    float | None,
    option("--timeout", "SECONDS", "Stop with an error after this many seconds.", callback=positive_seconds),
]
VerboseOption = Annotated[bool, option("--verbose -v", None, "Show the libraries' logs and tracebacks of errors.")]
QuietOption = Annotated[bool, option("--quiet -q", None, "Show only results, warnings and errors.")]
TrustRemoteCodeOption = Annotated[
    bool, option("--trust-remote-code", None, "Allow Python code from the checkpoint to run. Off by default.")
]


@dataclass(frozen=True, kw_only=True)
class DisplayOptions:
    """Options of every command that shows results."""

    as_json: JsonOption = False
    verbose: VerboseOption = False
    quiet: QuietOption = False


@dataclass(frozen=True, kw_only=True)
class ProfileOptions(DisplayOptions):
    """Options of every command that loads a profile."""

    profile: ProfileOption = None
    model: ModelOption = None
    set_: SetOption = None
    seed: SeedOption = None
    trust_remote_code: TrustRemoteCodeOption = False
