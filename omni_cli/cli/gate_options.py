"""Gate and report options that `omni bench` and `omni compare` share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from omni_cli.errors import OmniError, OutputError, UsageError
from omni_cli.whole_file import write_whole

if TYPE_CHECKING:
    from omni_cli.config.gate_limits import GateLimits

DEFAULT_MARGIN = "2%"

MaxRegressionOption = Annotated[
    str | None, typer.Option("--max-regression", metavar="PERCENT", help="Gate: the allowed slowdown, such as 5%.")
]
MaxMemoryRegressionOption = Annotated[
    str | None,
    typer.Option("--max-memory-regression", metavar="PERCENT", help="Gate: the allowed increase in memory."),
]
MetricOption = Annotated[
    list[str] | None,
    typer.Option(
        "--metric", metavar="NAME", help="Compare only this metric and apply `--max-regression` to it. Repeatable."
    ),
]
GateOption = Annotated[
    Path | None, typer.Option("--gate", metavar="FILE.yaml", help="Gate: limits from a file, see benchmarks/gates.")
]
IdenticalOutputsOption = Annotated[
    bool, typer.Option("--require-identical-outputs", help="Gate: all variants must produce the same outputs.")
]
MarginOption = Annotated[
    str, typer.Option("--margin", metavar="PERCENT", help="Differences below this count as no difference.")
]
AllowDifferenceOption = Annotated[
    list[str] | None,
    typer.Option("--allow-difference", metavar="FIELD", help="Compare even if this field differs. Repeatable."),
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
    """Build the gate from its options; None if there are none. Raises `OmniError`."""
    from omni_cli.config.gate_limits import merge_limits

    time = None if max_regression is None else read_fraction("--max-regression", max_regression)
    if time == 0:
        message = "invalid value for `--max-regression`: a limit of 0 cannot be judged"
        raise UsageError(message, hint="noise must fit below the limit, such as 2%")
    memory = None
    if max_memory_regression is not None:
        memory = read_fraction("--max-memory-regression", max_memory_regression)
    limits = None
    if file is not None:
        from omni_cli.config.gate_file import load_gate_file

        limits = load_gate_file(file)
    return merge_limits(
        limits,
        max_regression=time,
        max_memory_regression=memory,
        metrics=tuple(metrics or ()),
        identical_outputs=identical_outputs,
    )


def read_fraction(option: str, text: str) -> float:
    """Parse `5%` as 0.05. Raises `UsageError`."""
    from omni_cli.config.gate_limits import parse_fraction

    try:
        return parse_fraction(text)
    except ValueError as error:
        raise UsageError(f"invalid value for `{option}`: {error}") from error


def need_numpy(what: str) -> None:
    """Raise `OmniError` unless the statistics can be computed; `what` needs them."""
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
