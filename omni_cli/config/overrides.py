"""Apply `--set [STAGE.]KEY=VALUE` and similar options to a profile's data before it is checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from omni_cli.config.diagnostics import Diagnostic, Location, SourceText
from omni_cli.config.schema import PROFILE_KEYS
from omni_cli.config.yaml_tree import Path, Tree, find_unprintable, has_characters_only, parse_scalar, parse_yaml
from omni_cli.text import suggest, visible

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
                _refuse(tree, location, "not UTF-8 text")
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
        _refuse(tree, location, "not UTF-8 text")
        return
    name, equals, raw = text.partition("=")
    parts = name.strip().split(".")
    if not equals or not all(parts) or len(parts) > _MAX_PARTS:
        _refuse(tree, location, "expected [STAGE.]KEY=VALUE", "for example `--set thinker.max_num_seqs=4`")
        return
    path = _path(tree, parts, location)
    if path is None:
        return
    unprintable = find_unprintable(raw)
    if unprintable is not None:
        _refuse(tree, location, unprintable[1], "remove it")
        return
    value = _value(tree, raw, location)
    if value is None:
        _remove(tree, path)
    elif value is not _REFUSED:
        _assign(tree, path, value, location)


def _path(tree: Tree, parts: list[str], location: Location) -> Path | None:
    """Return the path of `STAGE.KEY` or `KEY` in the profile; None, with a diagnostic, if there is none."""
    stages = (tree.data or {}).get("stages")
    names = list(stages) if isinstance(stages, dict) else []
    if len(parts) == 1:
        # A stage may be named `model`, as in a derived profile of a language model, but every profile has that key.
        if parts[0] == "stages" or (parts[0] in names and parts[0] not in PROFILE_KEYS):
            stage = parts[0] if parts[0] in names else "STAGE"
            _refuse(tree, location, "sets a whole stage", f"set one of its keys: `--set {stage}.KEY=VALUE`")
            return None
        return (parts[0],)
    if parts[0] not in names:
        if isinstance(stages, dict):
            hint = "write the stage's name first, without `stages.`" if parts[0] == "stages" else None
            known = f"stages are {', '.join(visible(name, 80) for name in names)}"
            message = f"unknown stage `{visible(parts[0], 80)}`"
            _refuse(tree, location, message, hint or suggest(parts[0], names) or known)
        return None
    return ("stages", *parts)


_REFUSED = object()


def _value(tree: Tree, raw: str, location: Location) -> object:
    """Parse a YAML scalar; text that starts with a bracket or a quotation mark is read as YAML."""
    raw = raw.strip()
    if raw[:1] not in ("[", "{", '"', "'"):
        return parse_scalar(raw)
    text = f"value: {raw}\n"
    wrapped = parse_yaml(SourceText.of_text(location.source.label, text), text)
    if wrapped.diagnostics or wrapped.data is None or list(wrapped.data) != ["value"]:
        first = wrapped.diagnostics[0] if wrapped.diagnostics else Diagnostic(location, "expected one value")
        _refuse(tree, location, first.message, first.hint)
        return _REFUSED
    return wrapped.data["value"]


def _assign(tree: Tree, path: Path, value: object, location: Location) -> None:
    node: object = tree.data
    for end, part in enumerate(path[:-1], start=1):
        if not isinstance(node, dict):
            _refuse(tree, location, f"`{visible(str(path[end - 2]), 80)}` has no keys of its own")
            return
        if part not in node:
            node[part] = {}
            tree.keys[path[:end]] = location
        node = node[part]
    if not isinstance(node, dict):
        _refuse(tree, location, f"`{visible(str(path[-2]), 80)}` has no keys of its own")
        return
    _forget(tree, path)
    node[path[-1]] = value
    tree.keys[path] = tree.values[path] = location


def _remove(tree: Tree, path: Path) -> None:
    node: object = tree.data
    for part in path[:-1]:
        node = node.get(part) if isinstance(node, dict) else None
    if isinstance(node, dict):
        node.pop(path[-1], None)
        _forget(tree, path)


def _forget(tree: Tree, path: Path) -> None:
    """Drop the positions and mistakes of the old value, and of everything in it."""
    for table in (tree.keys, tree.values):
        for known in [known for known in table if known[: len(path)] == path]:
            del table[known]
    for known in [known for known in tree.faulty | tree.quoted if known[: len(path)] == path]:
        tree.faulty.discard(known)
        tree.quoted.discard(known)


def _refuse(tree: Tree, location: Location, message: str, hint: str | None = None) -> None:
    tree.diagnostics.append(Diagnostic(location, message, hint))
