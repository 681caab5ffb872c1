"""Description of the machine and the command in the kit's records."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from omni_cli.measure.bench.environment import read_environment

_LONGEST = 100


def kit_environment(**conditions: Any) -> dict[str, Any]:
    """The environment as in `omni bench`, without paths; `conditions` are added to its own."""
    found = without_places(read_environment())
    return {**found, "conditions": {**found["conditions"], **conditions}}


def kit_command() -> tuple[str, ...]:
    """The command line, of absolute paths their last part."""
    return ("python", *(Path(each).name if Path(each).is_absolute() else each for each in sys.argv))


def without_places(environment: dict[str, Any]) -> dict[str, Any]:
    """Without variables that hold a path, or pages of driver versions, and without Python's own path."""
    variables = {
        name: value for name, value in environment["variables"].items() if "/" not in value and len(value) <= _LONGEST
    }
    known = {name: value for name, value in environment["conditions"].items() if name != "python"}
    return {**environment, "variables": variables, "conditions": known}
