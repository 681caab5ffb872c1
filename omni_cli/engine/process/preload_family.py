"""Imported once by the fork server, so that stages start with the imports of their model family done."""

import importlib
import os

from omni_cli.engine.process.slow_imports import FAMILY_MODULES, slow_imports

with slow_imports():
    for _name in os.environ.pop(FAMILY_MODULES).split():
        importlib.import_module(_name)
