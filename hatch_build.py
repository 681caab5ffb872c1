"""Build hook: writes the commit into the wheel and the sdist, as `omni_cli/COMMIT`."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface):  # type: ignore[type-arg]
    """A wheel that is built from an sdist has the file already."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        asked = subprocess.run(["git", "-C", self.root, "rev-parse", "HEAD"], capture_output=True, text=True)
        if version == "editable" or asked.returncode or Path(self.root, "omni_cli", "COMMIT").exists():
            return
        self._folder = tempfile.TemporaryDirectory()
        file = Path(self._folder.name, "COMMIT")
        file.write_text(asked.stdout)
        build_data["force_include"][str(file)] = "omni_cli/COMMIT"
