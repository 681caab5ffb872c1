"""Find profiles: bundled ones by name, anything else by path."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

from omni_cli.core.errors import ProfileError
from omni_cli.core.text import suggest, visible

_PACKAGE = Path(__file__).resolve().parent.parent
_SUFFIXES = (".yaml", ".yml")


def bundled_folder() -> Path:
    """Return the folder of the bundled profiles: inside the installed package, or at the top of a source tree."""
    for folder in (_PACKAGE / "profiles", _PACKAGE.parent / "profiles"):
        if folder.is_dir():
            return folder
    raise ProfileError(
        "the bundled profiles are missing from this installation", hint="install omni-cli again, or pass a path"
    )


def bundled_profiles() -> dict[str, Path]:
    """Map the name of every bundled profile to its path, sorted by name."""
    return dict(sorted((path.stem, path) for path in bundled_folder().glob("*.yaml")))


@functools.cache
def bundled_data() -> dict[str, dict[str, Any]]:
    """Return the bundled profiles as written, by name: without defaults, and without the checks, which take long."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return {name: yaml.load(path.read_bytes(), loader) for name, path in bundled_profiles().items()}


def find_profile(name_or_path: str) -> Path:
    """Return the file of a profile. Raises `ProfileError` if it is neither a bundled name nor a file."""
    bundled = bundled_profiles()
    if name_or_path in bundled:
        return bundled[name_or_path]
    shown = visible(name_or_path)
    looks_like_path = os.sep in name_or_path or name_or_path.endswith(_SUFFIXES)
    path = Path(name_or_path)
    try:
        if name_or_path and path.is_dir():
            raise ProfileError(f"profile `{shown}` is a folder", hint="name the YAML file in it")
        if name_or_path and path.exists():
            return path
    except OSError as error:  # too long, or a folder without permission
        raise ProfileError(f"cannot read profile `{shown}`: {error.strerror}") from error
    near = suggest(path.stem if looks_like_path else name_or_path, bundled)
    names = ", ".join(bundled)
    hint = f"bundled profiles are {names}"
    message = f"no profile file `{shown}`" if looks_like_path else f"no profile named `{shown}`, and no such file"
    raise ProfileError(message, hint=f"{near}\n{hint}" if near else hint)


def shown_path(path: Path) -> str:
    """Format a path as a user would write it: relative if it is below the working directory."""
    try:
        return str(path.relative_to(Path.cwd())) if path.is_absolute() else str(path)
    except (ValueError, OSError):
        return str(path)
