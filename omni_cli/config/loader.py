"""Load a profile by name or path, with overrides, into an `EngineConfig` or a list of mistakes."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from omni_cli.config.bundled import bundled_profiles, find_profile, shown_path
from omni_cli.config.diagnostics import Diagnostic, InvalidProfileError, Location, SourceText, in_source_order
from omni_cli.config.schema import PIPELINE_ARGUMENTS, PROFILE_KEYS, DiffusionStageConfig, EngineConfig
from omni_cli.config.validation import validate
from omni_cli.config.yaml_tree import (
    MAX_BYTES,
    Tree,
    TreePath,
    find_unprintable,
    has_characters_only,
    parse_scalar,
    parse_yaml,
)
from omni_cli.core.errors import ProfileError
from omni_cli.core.files import reason_of
from omni_cli.core.text import suggest, visible


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
        raise ProfileError(f"cannot read profile `{label}`: {reason_of(error)}") from error
    if len(content) > MAX_BYTES:
        message = f"larger than {MAX_BYTES // 1024} KiB, the maximum for a profile"
        return _refused_tree(Diagnostic(Location(SourceText(label, ("",))), message))
    return _decode(label, content)


def _decode(label: str, content: bytes) -> Tree:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8-sig", errors="replace")
        source = SourceText.of_text(label, content.decode("utf-8-sig", errors="replace"))
        return _refused_tree(Diagnostic(source.location_after(before), "not UTF-8 text", "save the file as UTF-8"))
    return parse_yaml(SourceText.of_text(label, text), text)


def _refused_tree(diagnostic: Diagnostic) -> Tree:
    return Tree(None, values={(): diagnostic.location}, diagnostics=[diagnostic])


_MAX_PARTS = 6
_MEMORY_KEYS = ("kv_cache_memory_bytes", "gpu_memory_utilization")


def apply_overrides(
    tree: Tree, overrides: Iterable[str], *, model: str | None = None, seed: int | None = None
) -> dict[str, int]:
    """Apply `--set` options, `--model` and `--seed` to `tree`, in the given order.

    Mistakes are added to the tree's diagnostics. Returns each option's label with its position, for sorting.
    """
    order: dict[str, int] = {}
    for text in overrides:
        location = Location(SourceText(f"--set {text}"))
        order.setdefault(location.source.label, len(order) + 1)
        _apply(tree, text, location)
    for option, key, value in (("--model", "model", model), ("--seed", "seed", seed)):
        if value is not None:
            location = Location(SourceText(f"{option} {value}"))
            order.setdefault(location.source.label, len(order) + 1)
            if isinstance(value, str) and not has_characters_only(value):
                tree.refuse(location, "not UTF-8 text")
                continue
            _assign(tree, (key,), value, location)
    _drop_replaced(tree, order)
    return order


def _drop_replaced(tree: Tree, order: Mapping[str, int]) -> None:
    """Remove a stage's share of the memory where an option sets the size of its KV cache instead, and vice versa."""
    paths = [path for path, location in tree.keys.items() if location.source.label in order]
    for set_key, replaced in (_MEMORY_KEYS, _MEMORY_KEYS[::-1]):
        for path in paths:
            other = (*path[:-1], replaced)
            if path[-1:] == (set_key,) and path[0] == "stages" and other in tree.keys and other not in paths:
                _remove(tree, other)


def _apply(tree: Tree, text: str, location: Location) -> None:
    if not has_characters_only(text):
        tree.refuse(location, "not UTF-8 text")
        return
    name, equals, raw = text.partition("=")
    parts = name.strip().split(".")
    if not equals or not all(parts) or len(parts) > _MAX_PARTS:
        tree.refuse(location, "expected [STAGE.]KEY=VALUE", "for example `--set thinker.max_num_seqs=4`")
        return
    path = _path(tree, parts, location)
    if path is None:
        return
    unprintable = find_unprintable(raw)
    if unprintable is not None:
        tree.refuse(location, unprintable[1], "remove it")
        return
    value = _value(tree, raw, location)
    if value is None:
        _remove(tree, path)
    elif value is not _NO_VALUE:
        _assign(tree, path, value, location)


def _path(tree: Tree, parts: list[str], location: Location) -> TreePath | None:
    """Return the path of `STAGE.KEY` or `KEY` in the profile; None, with a diagnostic, if there is none."""
    stages = (tree.data or {}).get("stages")
    names = list(stages) if isinstance(stages, dict) else []
    if len(parts) == 1:
        # A stage may be named `model`, as in a derived profile of a language model, but every profile has that key.
        if parts[0] == "stages" or (parts[0] in names and parts[0] not in PROFILE_KEYS):
            stage = parts[0] if parts[0] in names else "STAGE"
            tree.refuse(location, "sets a whole stage", f"set one of its keys: `--set {stage}.KEY=VALUE`")
            return None
        return (parts[0],)
    if parts[0] not in names:
        if isinstance(stages, dict):
            hint = "write the stage's name first, without `stages.`" if parts[0] == "stages" else None
            known = f"stages are {', '.join(visible(name, 80) for name in names)}"
            message = f"unknown stage `{visible(parts[0], 80)}`"
            tree.refuse(location, message, hint or suggest(parts[0], names) or known)
        return None
    return ("stages", *parts)


_NO_VALUE = object()


def _value(tree: Tree, raw: str, location: Location) -> object:
    """Parse a YAML scalar; text that starts with a bracket or a quotation mark is read as YAML."""
    raw = raw.strip()
    if raw[:1] not in ("[", "{", '"', "'"):
        return parse_scalar(raw)
    text = f"value: {raw}\n"
    wrapped = parse_yaml(SourceText.of_text(location.source.label, text), text)
    if wrapped.diagnostics or wrapped.data is None or list(wrapped.data) != ["value"]:
        first = wrapped.diagnostics[0] if wrapped.diagnostics else Diagnostic(location, "expected one value")
        tree.refuse(location, first.message, first.hint)
        return _NO_VALUE
    return wrapped.data["value"]


def _assign(tree: Tree, path: TreePath, value: object, location: Location) -> None:
    node: object = tree.data
    for end, part in enumerate(path[:-1], start=1):
        if not isinstance(node, dict):
            tree.refuse(location, f"`{visible(str(path[end - 2]), 80)}` has no keys of its own")
            return
        if part not in node:
            node[part] = {}
            tree.keys[path[:end]] = location
        node = node[part]
    if not isinstance(node, dict):
        tree.refuse(location, f"`{visible(str(path[-2]), 80)}` has no keys of its own")
        return
    _forget(tree, path)
    node[path[-1]] = value
    tree.keys[path] = tree.values[path] = location


def _remove(tree: Tree, path: TreePath) -> None:
    node: object = tree.data
    for part in path[:-1]:
        node = node.get(part) if isinstance(node, dict) else None
    if isinstance(node, dict):
        node.pop(path[-1], None)
        _forget(tree, path)


def _forget(tree: Tree, path: TreePath) -> None:
    """Drop the positions and mistakes of the old value, and of everything in it."""
    for table in (tree.keys, tree.values):
        for known in [known for known in table if known[: len(path)] == path]:
            del table[known]
    for known in [known for known in tree.faulty | tree.quoted if known[: len(path)] == path]:
        tree.faulty.discard(known)
        tree.quoted.discard(known)
