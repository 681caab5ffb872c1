"""The options that only `omni bench` has, as types for its signature."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

MAX_BATCH_SIZE = 4096
MAX_TOKENS = 2**20


def _option(name: str, metavar: str, help_text: str, **limits: Any) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(name, metavar=metavar, help=help_text, **limits)
    return option


StageOption = Annotated[
    str, _option("--stage", "NAME|ar|diffusion|all", "What to measure: a stage, all of a kind, or end to end.")
]
VaryOption = Annotated[
    list[str] | None,
    _option(
        "--vary",
        "KEY=A,B",
        "Compare values of a profile key, or of an environment variable as `env.NAME`; repeatable. The first value "
        "is what the others are compared with.",
    ),
]
AgainstOption = Annotated[
    str | None, _option("--against", "GIT_REF", "Compare this code with that of another commit, taking turns.")
]
BaselineOption = Annotated[
    Path | None, _option("--baseline", "FILE", "Compare with a saved record of the same machine and workload.")
]
NumItersOption = Annotated[
    int | None,
    _option("--num-iters", "N", "Iterations of each variant; without it, until the verdict stands.", min=1),
]
NumItersWarmupOption = Annotated[
    int, _option("--num-iters-warmup", "N", "Iterations of each variant that are not counted, at least 1.", min=0)
]
TimeBudgetOption = Annotated[
    float | None,
    _option("--time-budget", "SECONDS", "Time for measuring, loading not included; 60 a comparison if absent."),
]
BatchSizeOption = Annotated[
    int, _option("--batch-size", "N", "Requests that are sent at once.", min=1, max=MAX_BATCH_SIZE)
]
InputLenOption = Annotated[int, _option("--input-len", "N", "Tokens of a prompt.", min=1, max=MAX_TOKENS)]
OutputLenOption = Annotated[
    int, _option("--output-len", "N", "Tokens that every AR stage makes, no fewer.", min=1, max=MAX_TOKENS)
]
OutputJsonOption = Annotated[
    Path | None, _option("--output-json", "FILE", "Save the record with all samples, anew after every block.")
]
SmallerIsBetterOption = Annotated[
    Path | None,
    _option("--smaller-is-better", "FILE", "Also write medians as github-action-benchmark's customSmallerIsBetter."),
]
SelfCheckOption = Annotated[
    bool,
    typer.Option(
        "--self-check",
        help="Measure one variant against itself: the smallest regression that shows here; refuses limits below it.",
    ),
]
