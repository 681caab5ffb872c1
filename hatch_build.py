"""Build hook: writes the commit into the wheel and the sdist, as `omni_cli/COMMIT`."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface):  # type: ignore[type-arg]
    """A wheel that is built from an sdist has the file already."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or Path(self.root, "omni_cli", "COMMIT").exists() or shutil.which("git") is None:
            return
        asked = subprocess.run(["git", "-C", self.root, "rev-parse", "HEAD"], capture_output=True, text=True)
        if asked.returncode:
            return
        self._folder = tempfile.TemporaryDirectory()
        file = Path(self._folder.name, "COMMIT")
        file.write_text(asked.stdout)
        build_data["force_include"][str(file)] = "omni_cli/COMMIT"
