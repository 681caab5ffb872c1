"""Load a profile by name or path, with overrides, into an `EngineConfig` or a list of mistakes."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path

from omni_cli.config.bundled import bundled_profiles, find_profile, shown_path
from omni_cli.config.diagnostics import Diagnostic, InvalidProfileError, Location, SourceText, in_source_order
from omni_cli.config.overrides import apply_overrides
from omni_cli.config.schema import PIPELINE_ARGUMENTS, DiffusionStageConfig, EngineConfig
from omni_cli.config.validation import validate
from omni_cli.config.yaml_tree import MAX_BYTES, Tree, parse_yaml
from omni_cli.errors import ProfileError


def load_profile(
    name_or_path: str,
    overrides: Iterable[str] = (),
    model: str | None = None,
    trust_remote_code: bool = False,
    seed: int | None = None,
) -> EngineConfig:
    """Return the resolved configuration of a bundled profile or of a file.

    `overrides` are `[STAGE.]KEY=VALUE` as after `--set`, applied in order; `model` and `seed` come last. Raises
    `ProfileError` if there is no such profile or it cannot be read, and `InvalidProfileError`, with every mistake in it
    and in the overrides, if it is invalid.
    """
    profile, diagnostics = read_profile(find_profile(name_or_path), overrides, model=model, seed=seed)
    if profile is None:
        raise InvalidProfileError(diagnostics)
    return profile.trusting_remote_code() if trust_remote_code else profile


def load_bundled() -> dict[str, EngineConfig]:
    """Return the bundled profiles by name."""
    return {name: load_profile(name) for name in bundled_profiles()}


def check_profile(path: Path) -> tuple[Diagnostic, ...]:
    """Return every mistake in a file, in source order; raises `ProfileError` if it cannot be read."""
    return read_profile(path)[1]


def read_profile(
    path: Path, overrides: Iterable[str] = (), *, model: str | None = None, seed: int | None = None
) -> tuple[EngineConfig | None, tuple[Diagnostic, ...]]:
    """Return the profile in a file with the overrides applied, or None and every mistake; exactly one of the two.

    A relative path of its model counts from the file's folder if it leads to a folder from there.
    """
    tree = _read_tree(path)
    order: dict[str, int] = {}
    own_model = (tree.data or {}).get("model")
    if tree.data is not None:
        order = apply_overrides(tree, overrides, model=model, seed=seed)
    profile = validate(tree)
    if profile is not None and profile.model != own_model:
        _mark_droppable(profile, tree)
    elif profile is not None and model is None and (beside := path.parent / profile.model).is_dir():
        profile = profile.model_copy(update={"model": os.path.normpath(beside)})
    diagnostics = (
        dataclasses.replace(item, order=order.get(item.location.source.label, 0)) for item in tree.diagnostics
    )
    return profile, in_source_order(diagnostics)


def _mark_droppable(config: EngineConfig, tree: Tree) -> None:
    """Mark the pipeline arguments in the file, but not in options, as droppable: they are for the file's checkpoint."""
    for stage in config.stages:
        if isinstance(stage, DiffusionStageConfig) and stage.backend == "diffusers":
            paths = [*((name,) for name in PIPELINE_ARGUMENTS), *(("call", name) for name in stage.call)]
            locations = {path[-1]: tree.keys.get(("stages", stage.name, *path)) for path in paths}
            in_file = [name for name, location in locations.items() if location is not None and location.source.lines]
            stage._droppable_arguments = tuple(in_file)


def _read_tree(path: Path) -> Tree:
    label = shown_path(path)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ProfileError(f"cannot read profile `{label}`: {reason}") from error
    if len(content) > MAX_BYTES:
        message = f"larger than {MAX_BYTES // 1024} KiB, the maximum for a profile"
        return _refused(Diagnostic(Location(SourceText(label, ("",))), message))
    return _decode(label, content)


def _decode(label: str, content: bytes) -> Tree:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8-sig", errors="replace")
        source = SourceText.of_text(label, content.decode("utf-8-sig", errors="replace"))
        return _refused(Diagnostic(source.location_after(before), "not UTF-8 text", "save the file as UTF-8"))
    return parse_yaml(SourceText.of_text(label, text), text)


def _refused(diagnostic: Diagnostic) -> Tree:
    return Tree(None, values={(): diagnostic.location}, diagnostics=[diagnostic])
