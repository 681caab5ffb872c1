"""Modules that are imported with the first use of an attribute, so that commands which do not compute start fast."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class LateModule:
    """A module in name, also where annotations are evaluated."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(import_module(self._name), attribute)
        setattr(self, attribute, value)
        return value
