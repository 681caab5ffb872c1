"""The commit of the running code: of its clone, or the one that its wheel was built from."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
_GIT_TIMEOUT_S = 60.0


def read_commit(root: Path = ROOT) -> str | None:
    """Return the hash of the commit; None if neither git nor the package says it."""
    if (root / ".git").exists():
        return git_output(root, "rev-parse", "HEAD")
    built = root / "omni_cli" / "COMMIT"
    return built.read_text().strip() if built.exists() else None


def git_output(root: Path, *arguments: str) -> str | None:
    """Run git and return its output; None without git or without a repository."""
    try:
        asked = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=_GIT_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return asked.stdout.strip() if asked.returncode == 0 else None
