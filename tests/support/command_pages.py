"""`scripts/command_pages.py` as a module, because `scripts` is not a package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import omni_cli

SCRIPT = Path(omni_cli.__file__).parents[1] / "scripts" / "command_pages.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("command_pages", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["command_pages"] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module
