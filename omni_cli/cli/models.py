"""`omni models`: small random-weight checkpoints of real architectures, written to a folder."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Annotated

import typer

from omni_cli.cli.options import JsonOption, QuietOption, VerboseOption
from omni_cli.cli.terminal import console, interrupts
from omni_cli.config.bounds import MAX_NUMPY_SEED
from omni_cli.errors import UsageError
from omni_cli.families import builtins
from omni_cli.text import suggest

models = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


@models.callback()
def _models() -> None:
    """Build small random-weight checkpoints."""


@models.command("build")
def build(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of {', '.join(builtins())}.")],
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", min=0, max=MAX_NUMPY_SEED, help="Seed of the random weights.")
    ] = 0,
    output_dir: Annotated[
        Path | None,
        typer.Option("--output-dir", metavar="DIR", help="The checkpoint's folder. Default: ./NAME."),
    ] = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
    quiet: QuietOption = False,
) -> None:
    """Write a small checkpoint of a real architecture, with random weights; nothing is downloaded.

    The same name and seed give the same bytes. A folder that already holds them is left as it is.
    """
    from omni_cli.checkpoints.build import build_folder
    from omni_cli.checkpoints.files import count_parameters

    if name not in builtins():
        raise UsageError(
            f"no such built-in model: `{name}`",
            hint=suggest(name, builtins()) or f"the built-in models are {', '.join(builtins())}",
        )
    target = output_dir if output_dir is not None else Path(name)
    start = time.perf_counter()
    written = build_folder(name, target, seed, go_on=interrupts.check)
    build_s = time.perf_counter() - start
    num_parameters = count_parameters(target)
    num_bytes = sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
    if as_json:
        console.print_json(
            {
                "schema": "omni.models.build/1",
                "name": name,
                "seed": seed,
                "path": str(target),
                "written": written,
                "num_parameters": num_parameters,
                "size_bytes": num_bytes,
                "build_s": build_s,
            }
        )
        return
    console.print_text(str(target))
    if not quiet:
        what = "built" if written else "already up to date, checked byte for byte"
        console.print_note(f"{num_parameters / 1e6:.1f} M parameters, {_size(num_bytes)}, {what} in {build_s:.1f} s")


def _size(num_bytes: int) -> str:
    """Format with binary units and one decimal: `6.4 MiB`."""
    power = min(int(math.log2(max(num_bytes, 1)) // 10), 3)
    return f"{num_bytes / 1024**power:.{1 if power else 0}f} {('B', 'KiB', 'MiB', 'GiB')[power]}"
