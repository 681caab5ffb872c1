"""What `omni bench` and `omni compare` share: the options that set a gate and name reports, and how they are read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from omni_cli.cli.artifacts import write_whole
from omni_cli.errors import OmniError, OutputError, UsageError

if TYPE_CHECKING:
    from omni_cli.config.gate_file import GateLimits

MaxRegressionOption = Annotated[
    str | None, typer.Option("--max-regression", metavar="PERCENT", help="Gate: how much slower it may be, such as 5%.")
]
MaxMemoryRegressionOption = Annotated[
    str | None,
    typer.Option("--max-memory-regression", metavar="PERCENT", help="Gate: how much more memory it may allocate."),
]
MetricOption = Annotated[
    list[str] | None,
    typer.Option("--metric", metavar="NAME", help="Only this metric; `--max-regression` then gates it. Repeatable."),
]
GateOption = Annotated[
    Path | None, typer.Option("--gate", metavar="FILE.yaml", help="Gate: limits of a file, see benchmarks/gates.")
]
IdenticalOutputsOption = Annotated[
    bool, typer.Option("--require-identical-outputs", help="Gate: the outputs of all have to be the same.")
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


def read_limits(
    file: Path | None,
    max_regression: str | None,
    max_memory_regression: str | None,
    metrics: list[str] | None,
    identical_outputs: bool,
) -> GateLimits | None:
    """The gate that the options ask for; None where they ask for none. Raises `OmniError`."""
    from omni_cli.config.gate_file import load_gate_file, merge_limits

    time = None if max_regression is None else read_fraction("--max-regression", max_regression)
    if time == 0:
        message = "invalid value for `--max-regression`: a limit of 0 cannot be judged"
        raise UsageError(message, hint="noise has to fit below the limit: write 2%")
    memory = None
    if max_memory_regression is not None:
        memory = read_fraction("--max-memory-regression", max_memory_regression)
    return merge_limits(
        None if file is None else load_gate_file(file),
        max_regression=time,
        max_memory_regression=memory,
        metrics=tuple(metrics or ()),
        identical_outputs=identical_outputs,
    )


def read_fraction(option: str, text: str) -> float:
    """`5%` as 0.05. Raises `UsageError`."""
    from omni_cli.config.gate_file import parse_fraction

    try:
        return parse_fraction(text)
    except ValueError as error:
        raise UsageError(f"invalid value for `{option}`: {error}") from error


def need_numpy(what: str) -> None:
    """Raise `OmniError` where the statistics cannot be computed; `what` needs them."""
    try:
        import numpy  # noqa: F401
    except ImportError as error:
        message = f"{what} needs NumPy, which is not installed"
        raise OmniError(message, hint="install omni-cli with the extra `cpu`, `cuda` or `run`") from error


def write_report(path: Path, text: str) -> None:
    """Write a report whole or not at all. Raises `OutputError`."""
    try:
        write_whole(path, text.encode("utf-8", errors="replace"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise OutputError(f"cannot write `{path}`: {reason}") from error
