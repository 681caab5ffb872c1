"""The options that only `omni bench` has, as types for its signature."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

MAX_BATCH_SIZE = 4096
MAX_TOKENS = 2**20


def _option(name: str, metavar: str, help_text: str, **limits: int) -> typer.models.OptionInfo:
    return typer.Option(name, metavar=metavar, help=help_text, **limits)


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
MaxRegressionOption = Annotated[
    str | None, _option("--max-regression", "PERCENT", "Gate: how much slower it may be, such as 5%.")
]
MaxMemoryRegressionOption = Annotated[
    str | None, _option("--max-memory-regression", "PERCENT", "Gate: how much more memory it may allocate.")
]
MetricOption = Annotated[
    list[str] | None,
    _option("--metric", "NAME", "Only this metric; `--max-regression` then gates it. Repeatable."),
]
GateOption = Annotated[Path | None, _option("--gate", "FILE.yaml", "Gate: limits of a file, see benchmarks/gates.")]
IdenticalOption = Annotated[
    bool, typer.Option("--require-identical-outputs", help="Gate: the outputs of all have to be the same.")
]
MarginOption = Annotated[str, _option("--margin", "PERCENT", "Differences below this are called no difference.")]
AllowOption = Annotated[
    list[str] | None,
    _option("--allow-difference", "FIELD", "Compare with the baseline although this field differs. Repeatable."),
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
JunitOption = Annotated[Path | None, _option("--junit", "FILE", "Also write the gate as JUnit XML.")]
MarkdownOption = Annotated[Path | None, _option("--markdown", "FILE", "Also write the report as Markdown.")]
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
