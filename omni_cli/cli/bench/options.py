"""The options of `omni bench`, some of which `omni profile` and `omni loadtest` share, as types for signatures."""

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
    str, _option("--stage", "NAME|ar|diffusion|all", "The stages to measure: one, all of a kind, or end to end.")
]
VaryOption = Annotated[
    list[str] | None,
    _option(
        "--vary",
        "KEY=A,B",
        "Compare values of a profile key, or of an environment variable as `env.NAME`; repeatable. The first value "
        "is the baseline of the others.",
    ),
]
AgainstOption = Annotated[
    str | None, _option("--against", "GIT_REF", "Compare this code with that of another commit, interleaved.")
]
BaselineOption = Annotated[
    Path | None, _option("--baseline", "FILE", "Compare with a saved record of the same machine and workload.")
]
NumItersOption = Annotated[
    int | None,
    _option("--num-iters", "N", "Iterations per variant. Default: until the verdict is reached.", min=1),
]
NumItersWarmupOption = Annotated[
    int, _option("--num-iters-warmup", "N", "Warm-up iterations per variant, which are not counted; at least 1.", min=0)
]
TimeBudgetOption = Annotated[
    float | None,
    _option("--time-budget", "SECONDS", "Time for measuring, without loading. Default: 60 per comparison."),
]
BatchSizeOption = Annotated[
    int, _option("--batch-size", "N", "Requests per iteration, sent at once.", min=1, max=MAX_BATCH_SIZE)
]
InputLenOption = Annotated[int, _option("--input-len", "N", "Tokens per prompt.", min=1, max=MAX_TOKENS)]
OutputLenOption = Annotated[
    int, _option("--output-len", "N", "Tokens that every AR stage generates, no fewer.", min=1, max=MAX_TOKENS)
]
OutputJsonOption = Annotated[
    Path | None, _option("--output-json", "FILE", "Save the record with all samples, again after every block.")
]
