"""References of plug-ins to code that is not there, found without importing it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from pathlib import Path

from omni_cli.config.families import BrokenPlugin, Family, Reference, families, find_file, find_top, is_ours


def missing_targets() -> list[BrokenPlugin]:
    """Return references of plug-ins to what is not in their files, which would fail only when used."""
    return [
        BrokenPlugin(family.name, f"the model family `{family.name}` names `{reference}`, which is not there ({place})")
        for family in families().values()
        for reference in _references(family)
        if not is_ours(reference) and (place := _missing_target(reference))
    ]


def _references(family: Family) -> Iterable[Reference]:
    parts = (family.claims, family.profile, family.check, family.reference)
    roles = ((role.stage, role.settings, role.takes) for role in family.roles)
    all_of_them = (*parts, *family.models.values(), *family.builtins.values(), *itertools.chain(*roles))
    return (reference for reference in all_of_them if isinstance(reference, str))


def _missing_target(reference: Reference) -> str | None:
    """Return the place that names a reference, if its module does not have that name."""
    module, _, name = reference.partition(":")
    file = find_file(module)
    if file is not None and re.search(rf"\b{re.escape(name)}\b", file.read_text()):
        return None
    files = Path(find_top(module) or ".").rglob("*.py")
    numbered = ((file, *numbered) for file in files for numbered in enumerate(file.read_text().splitlines(), 1))
    return next((f"{file}:{number}" for file, number, line in numbered if reference in line), "not installed")
