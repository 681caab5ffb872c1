"""Build a built-in checkpoint, complete or not at all, in a folder or in the user's cache.

Imports nothing heavy until something is built.
"""

from __future__ import annotations

import filecmp
import functools
import hashlib
import os
import re
import shutil
from collections.abc import Callable
from contextlib import ExitStack, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from omni_cli.checkpoints.hub import hold_lock, home_folder
from omni_cli.config.families import BUILTIN_PREFIX, RANDOM_WEIGHTS, builtins, find_file, load
from omni_cli.core.errors import CheckpointError, OmniError, OutputError
from omni_cli.core.files import scratch_folder

# These packages, besides our own code, determine the bytes of a built folder.
_PACKAGES = ("transformers", "diffusers", "tokenizers", "safetensors", "torch", "numpy")
_PARTIAL = ".partial-"
# Every loader reads these first, so they are written last.
_ENTRY_FILES = ("config.json", "model_index.json")
_ELSEWHERE = "choose another folder with `--output-dir`"
_OS_ERROR = re.compile(r"os error (\d+)")


def build_folder(name: str, target: Path, seed: int, go_on: Callable[[], None] = lambda: None) -> bool:
    """Build the built-in checkpoint `name` at `target`, a path that is free or an empty folder.

    A folder that already holds exactly these bytes is left as it is; returns False then. Raises `OutputError` if
    `target` is something else or not writable, and leaves nothing half-written, even when interrupted. `go_on` is
    called when all is built and nothing is in place yet; an exception from it stops the build.
    """
    try:
        path = target.resolve()
        if path.exists() and not path.is_dir():
            raise OutputError(f"`{target}` is a file, not a folder", hint=_ELSEWHERE)
        empty = path.is_dir() and not any(path.iterdir())
        occupied = path.is_dir() and not empty
        if occupied and not any((path / name).exists() for name in _ENTRY_FILES):
            raise OutputError(f"`{target}` is not empty and holds no checkpoint", hint=_ELSEWHERE)
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise OutputError(f"`{error.filename}` is a file, not a folder", hint=_ELSEWHERE) from error
    except OSError as error:
        raise _cannot_write(target, error) from error
    # Next to the target, to be renamed into place; inside an empty folder, whose parent may be read-only.
    prefix, parent = (_PARTIAL, path) if empty else (f".{path.name}{_PARTIAL}", path.parent)
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
                    entry.rename(path / entry.name)
            else:
                partial.rename(path)
        except OSError as error:
            raise _cannot_write(target, error) from error
    return True


def _build(name: str, folder: Path, seed: int, target: Path) -> None:
    try:
        from omni_cli.core.compat.libraries import prepare_libraries

        prepare_libraries()
        load(builtins()[name].builtins[name])(folder, seed)
        (folder / RANDOM_WEIGHTS).write_text(f"`{name}` has random weights: its outputs have no meaning.\n")
    except Exception as error:
        if _is_write_failure(error):
            raise _cannot_write(target, error) from error
        if isinstance(error, (ImportError, OSError)):  # a library that the system's loader refuses is an OSError
            raise OmniError(
                f"building `{name}` needs a package that cannot be imported: {error}",
                hint="run `omni doctor` to see what is missing",
            ) from error
        raise


def _is_write_failure(error: Exception) -> bool:
    """True for a full disk, which safetensors, tokenizers and torch report in their own exceptions, as text only."""
    text, number = str(error), getattr(error, "errno", None)
    return number is not None or _OS_ERROR.search(text) is not None or "PytorchStreamWriter" in text


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


def cache_folder() -> Path:
    """Return the cache of built-in models: `$XDG_CACHE_HOME/omni-cli/checkpoints`, by default below `~/.cache`.

    Raises `OmniError` for a user without a home folder.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    # By the XDG specification, a relative path is ignored.
    root = Path(base) if Path(base).is_absolute() else home_folder() / ".cache"
    return root / "omni-cli" / "checkpoints"


def cached_folder(name: str) -> Path:
    """Return the folder in the cache for the built-in checkpoint `name`, which may not be built yet."""
    return cache_folder() / f"{name}-{_fingerprint(name)}"


def build_in_cache(name: str) -> Path:
    """Return the cached folder, building it if necessary; a second process waits for the first."""
    target = cached_folder(name)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with hold_lock(target.parent / f".{target.name}.lock"):
            if not target.is_dir():
                for stale in target.parent.glob(f".{target.name}{_PARTIAL}*"):  # of killed builds
                    shutil.rmtree(stale, ignore_errors=True)
                build_folder(name, target, seed=0)
    except OutputError as error:
        raise _cache_unusable(error.message) from error
    except OSError as error:
        raise _cache_unusable(f"cannot write `{target.parent}`: {error.strerror or error}") from error
    return target


def _cache_unusable(reason: str) -> OutputError:
    return OutputError(
        f"cannot store the built-in model: {reason}",
        hint="set XDG_CACHE_HOME to a folder with space, or use `omni models build` and `--model DIR`",
    )


@functools.cache
def _fingerprint(name: str) -> str:
    """Hash everything that may change the built bytes: the modules beside the builder, this folder, the libraries."""
    digest = hashlib.sha256(name.encode())
    builder = find_file(builtins()[name].builtins[name].partition(":")[0])
    if builder is None:
        raise CheckpointError(f"the builder of `{BUILTIN_PREFIX}{name}` is not installed")
    for source in sorted({*builder.parent.glob("*.py"), *Path(__file__).parent.glob("*.py")}):
        digest.update(source.read_bytes())
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):  # the build reports what is not installed
            digest.update(f"{package}=={version(package)}".encode())
    return digest.hexdigest()[:12]
