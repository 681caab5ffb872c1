"""Options shared by all commands, as types for Typer's signatures.

A command declares `profile: ProfileOption = None` and so on; `choose_profile` then returns the one to use.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

DEFAULT_PROFILE = "tiny-omni"
MAX_SEED = 2**32 - 1  # the maximum of NumPy's generator, which vLLM seeds too


def positive_seconds(value: float | None) -> float | None:
    if value is not None and not (math.isfinite(value) and value > 0):
        raise typer.BadParameter("expected a number of seconds greater than 0")
    return value


ProfileOption = Annotated[
    str | None,
    typer.Option(
        "--profile",
        "-p",
        metavar="NAME|PATH",
        help=f"A bundled profile by name, or a YAML file. Default: derived from `--model`, else {DEFAULT_PROFILE}.",
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="DIR|REPO",
        help="Checkpoint: a folder or a repo id. With `--profile`, it replaces that profile's own.",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="[STAGE.]KEY=VALUE",
        help="Set a key of the profile; repeatable. `null` removes the key.",
    ),
]
SeedOption = Annotated[
    int | None,
    typer.Option("--seed", metavar="N", min=0, max=MAX_SEED, help="Seed. Default: the profile's, else 0."),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print exactly one JSON document on stdout, and nothing else.")
]
OutputDirOption = Annotated[Path, typer.Option("--output-dir", metavar="DIR", help="Folder for output files.")]
TimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        callback=positive_seconds,
        help="Stop with an error after this many seconds.",
    ),
]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show the libraries' logs and tracebacks of errors.")
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Show only results, warnings and errors.")]
TrustRemoteCodeOption = Annotated[
    bool,
    typer.Option("--trust-remote-code", help="Allow Python code from the checkpoint to run. Off by default."),
]
