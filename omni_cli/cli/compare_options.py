"""The arguments of `omni compare`, as types for Typer's signature."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

FirstArgument = Annotated[Path, typer.Argument(metavar="A.json", help="The record to compare with.")]
SecondArgument = Annotated[
    Path | None,
    typer.Argument(metavar="B.json", help="The record to judge; without it, the variants of A.json."),
]
SelfCheckOption = Annotated[
    bool,
    typer.Option(
        "--self-check",
        help="Compare a single variant with itself: the smallest regression that its noise lets show; refuses limits "
        "below it.",
    ),
]
