"""The arguments and options of `omni compare`, as types for Typer's signature."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

FirstArgument = Annotated[Path, typer.Argument(metavar="A.json", help="The record to compare with.")]
SecondArgument = Annotated[
    Path | None,
    typer.Argument(metavar="B.json", help="The record to judge; without it, the variants of A.json."),
]
MaxRegressionOption = Annotated[
    str | None,
    typer.Option("--max-regression", metavar="PERCENT", help="Gate: how much slower B may be, such as 5%."),
]
MaxMemoryRegressionOption = Annotated[
    str | None,
    typer.Option("--max-memory-regression", metavar="PERCENT", help="Gate: how much more memory B may allocate."),
]
MetricOption = Annotated[
    list[str] | None,
    typer.Option("--metric", metavar="NAME", help="Only this metric; `--max-regression` then gates it. Repeatable."),
]
GateOption = Annotated[
    Path | None, typer.Option("--gate", metavar="FILE.yaml", help="Gate: limits of a file, see benchmarks/gates.")
]
IdenticalOutputsOption = Annotated[
    bool, typer.Option("--require-identical-outputs", help="Gate: the outputs of both have to be the same.")
]
MarginOption = Annotated[
    str, typer.Option("--margin", metavar="PERCENT", help="Differences below this are called no difference.")
]
AllowDifferenceOption = Annotated[
    list[str] | None,
    typer.Option("--allow-difference", metavar="FIELD", help="Compare although this field differs. Repeatable."),
]
MarkdownOption = Annotated[
    Path | None, typer.Option("--markdown", metavar="FILE", help="Also write the report as Markdown.")
]
JunitOption = Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Also write the gate as JUnit XML.")]
