"""Build a checkpoint folder, complete or not at all. Imports nothing heavy until something is built."""

from __future__ import annotations

import filecmp
import os
import re
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from omni_cli.errors import OmniError, OutputError
from omni_cli.families import builtins, load
from omni_cli.temporary_folder import scratch_folder

_PARTIAL = ".partial-"
# Every loader reads these first, so they are written last.
_ENTRY_FILES = ("config.json", "model_index.json")


def build_folder(name: str, target: Path, seed: int, go_on: Callable[[], None] = lambda: None) -> bool:
    """Build the built-in checkpoint `name` at `target`, a path that is free or an empty folder.

    A folder that already holds exactly these bytes is left as it is; returns False then. Raises `OutputError` if
    `target` is something else or not writable, and leaves nothing half-written, even when interrupted. `go_on` is
    called when all is built and nothing is in place yet; an exception from it stops the build.
    """
    try:
        place = target.resolve()
        if place.exists() and not place.is_dir():
            raise OutputError(f"`{target}` is a file, not a folder", hint=_ELSEWHERE)
        empty = place.is_dir() and not any(place.iterdir())
        occupied = place.is_dir() and not empty
        if occupied and not any((place / name).exists() for name in _ENTRY_FILES):
            raise OutputError(f"`{target}` is not empty and holds no checkpoint", hint=_ELSEWHERE)
        place.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise OutputError(f"`{error.filename}` is a file, not a folder", hint=_ELSEWHERE) from error
    except OSError as error:
        raise _cannot_write(target, error) from error
    # Next to the target, to be renamed into place; inside an empty folder, whose parent may be read-only.
    prefix, parent = (_PARTIAL, place) if empty else (f".{place.name}{_PARTIAL}", place.parent)
    with ExitStack() as stack:
        try:
            partial = stack.enter_context(scratch_folder(prefix, parent, mode=0o777))
        except OSError as error:
            raise _cannot_write(target, error) from error
        _build(name, partial, seed, target)
        go_on()
        if occupied:
            _require_same(name, seed, partial, target)
            return False
        try:
            if empty:
                for entry in sorted(partial.iterdir(), key=lambda entry: entry.name in _ENTRY_FILES):
                    entry.rename(place / entry.name)
            else:
                partial.rename(place)
        except OSError as error:
            raise _cannot_write(target, error) from error
    return True


def remove_partials(target: Path) -> None:
    """Remove the leftovers of killed builds of `target`. Call only while no other build of it can run."""
    for stale in target.parent.glob(f".{target.name}{_PARTIAL}*"):
        shutil.rmtree(stale, ignore_errors=True)


_ELSEWHERE = "choose another folder with `--output-dir`"


def _build(name: str, folder: Path, seed: int, target: Path) -> None:
    try:
        from omni_cli.compat.libraries import prepare_libraries

        prepare_libraries()
        load(builtins()[name].builtins[name])(folder, seed)
    except ImportError as error:
        raise OmniError(
            f"building `{name}` needs a package that cannot be imported: {error}",
            hint="run `omni doctor` to see what is missing",
        ) from error
    except Exception as error:
        if not _is_write_failure(error):
            raise
        raise _cannot_write(target, error) from error


_OS_ERROR = re.compile(r"os error (\d+)")


def _is_write_failure(error: Exception) -> bool:
    """True for a full disk, which safetensors, tokenizers and torch report in their own exceptions, as text only."""
    text = str(error)
    return isinstance(error, OSError) or _OS_ERROR.search(text) is not None or "PytorchStreamWriter" in text


def _require_same(name: str, seed: int, built: Path, target: Path) -> None:
    names = {file.relative_to(built) for file in built.rglob("*") if file.is_file()}
    present = {file.relative_to(target) for file in target.rglob("*") if not file.is_dir()}
    different = sorted(names ^ present) or sorted(
        file for file in names if not filecmp.cmp(built / file, target / file, shallow=False)
    )
    if different:
        raise OutputError(
            f"`{target}` is not empty and is not `{name}` with seed {seed} (`{different[0]}` differs)",
            hint=f"remove the folder, or {_ELSEWHERE}",
        )


def _cannot_write(path: Path, error: Exception) -> OutputError:
    number = getattr(error, "errno", None)
    if number is None and (match := _OS_ERROR.search(str(error))):
        number = int(match[1])
    reason = os.strerror(number) if number else str(error).splitlines()[0]
    return OutputError(f"cannot write `{path}`: {reason}", hint=_ELSEWHERE)
