"""Locate a model's files.

`builtin:NAME` is built once into the user's cache, a folder is checked, a repo id is left to the engines.
Imports neither torch nor transformers unless something has to be built.
"""

from __future__ import annotations

import ast
import difflib
import fcntl
import functools
import hashlib
import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from omni_cli.checkpoints.build import build_folder, remove_partials
from omni_cli.checkpoints.files import REPO_ID, check_checkpoint
from omni_cli.checkpoints.hub import home_folder
from omni_cli.errors import CheckpointError, OutputError
from omni_cli.families import BUILTIN_PREFIX, builtins

__all__ = ["builtin_name", "cache_folder", "is_built", "resolve_model"]

# These packages, besides our own code, determine the bytes of a built folder.
_PACKAGES = ("transformers", "diffusers", "tokenizers", "safetensors", "torch", "numpy")


def resolve_model(model: str) -> str:
    """Return a folder or a Hugging Face repo id for `builtin:NAME`, a folder, or a repo id.

    Raises `CheckpointError` for anything else and for a folder that is not a complete checkpoint.
    """
    if model.startswith(BUILTIN_PREFIX):
        return str(_built_folder(builtin_name(model)))
    if not model.strip():
        raise CheckpointError("the model name is empty", hint=_choices())
    try:
        folder = Path(model).expanduser()
        if folder.is_dir():
            check_checkpoint(folder)
            return str(folder)
        exists = folder.exists()
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"cannot read the model folder `{model}`: {error}") from error
    if exists:
        raise CheckpointError(f"`{model}` is a file; a model is a folder", hint=_choices())
    if REPO_ID.fullmatch(model):
        return model
    raise CheckpointError(f"no such model folder: `{model}`", hint=_did_you_mean(model))


def is_built(model: str) -> bool:
    """True if `resolve_model` returns without building; raises `CheckpointError` for an unknown `builtin:NAME`."""
    return not model.startswith(BUILTIN_PREFIX) or _cache_path(builtin_name(model)).is_dir()


def builtin_name(model: str) -> str:
    """Return NAME of `builtin:NAME`; `CheckpointError` if there is no such built-in model."""
    name = model.removeprefix(BUILTIN_PREFIX)
    if name not in builtins():
        raise CheckpointError(f"no such built-in model: `{name}`", hint=_did_you_mean(name))
    return name


def cache_folder() -> Path:
    """Return the cache of built-in models: `$XDG_CACHE_HOME/omni-cli/checkpoints`, by default below `~/.cache`.

    Raises `OmniError` for a user without a home folder.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification requires programs to ignore a relative path.
    root = Path(base) if Path(base).is_absolute() else home_folder() / ".cache"
    return root / "omni-cli" / "checkpoints"


def _choices() -> str:
    return f"use {', '.join(BUILTIN_PREFIX + name for name in builtins())}, a folder, or a Hugging Face repo id"


def _did_you_mean(text: str) -> str:
    near = difflib.get_close_matches(text, builtins(), n=1)
    return f"did you mean `{BUILTIN_PREFIX}{near[0]}`?" if near else _choices()


def _built_folder(name: str) -> Path:
    """Return the cached folder, building it if necessary; a second process waits for the first."""
    target = _cache_path(name)
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.parent / f".{target.name}.lock"):
            if not target.is_dir():
                remove_partials(target)
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


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock, which the system releases even if the process is killed."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _cache_path(name: str) -> Path:
    return cache_folder() / f"{name}-{_fingerprint(name)}"


@functools.cache
def _fingerprint(name: str) -> str:
    """Hash everything that may change the built bytes: the builder's modules and the libraries."""
    digest = hashlib.sha256(name.encode())
    sources = _imported(builtins()[name].builtins[name].partition(":")[0])
    if not sources:
        raise CheckpointError(f"the builder of `{BUILTIN_PREFIX}{name}` is not installed")
    for _, source in sorted(sources.items()):
        digest.update(source)
    for package in _PACKAGES:
        digest.update(f"{package}=={_version(package)}".encode())
    return digest.hexdigest()[:12]


def _imported(builder: str) -> dict[str, bytes]:
    """Return the sources of a module and of its imports from its own package and omni, found without running them."""
    packages = (builder.partition(".")[0], "omni_cli")
    sources: dict[str, bytes] = {}
    pending = {builder}
    while pending:
        module = pending.pop()
        origin = _origin(module)
        if origin is None or module in sources:
            continue
        sources[module] = origin.read_bytes()
        for node in ast.walk(ast.parse(sources[module])):
            if isinstance(node, ast.ImportFrom):
                base = importlib.util.resolve_name("." * node.level + (node.module or ""), module.rpartition(".")[0])
                found = {base, *(f"{base}.{alias.name}" for alias in node.names)}
            else:
                found = {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()
            pending.update(name for name in found if name.partition(".")[0] in packages)
    return sources


def _origin(module: str) -> Path | None:
    """Return the file of a module; None for a class or function, and for a module that is not installed."""
    package, *parts = module.split(".")
    # Only the package: looking up the whole name would import everything in front of it.
    spec = importlib.util.find_spec(package)
    folders = [] if spec is None else spec.submodule_search_locations or []
    stems = [Path(folder, *parts) for folder in folders]
    files = [file for stem in stems for file in (stem.with_suffix(".py"), stem / "__init__.py")]
    return next((file for file in files if file.is_file()), None)


def _version(package: str) -> str | None:
    """Return the installed version; None if it is not installed, which the build reports."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
