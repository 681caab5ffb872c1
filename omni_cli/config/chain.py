"""Check how the stages of a profile are connected: each takes its input from an earlier one."""

from __future__ import annotations

from collections.abc import Mapping

from omni_cli.config.diagnostics import Diagnostic
from omni_cli.config.yaml_tree import Path, Tree
from omni_cli.text import suggest, visible


def check_inputs(tree: Tree, stages: Mapping[str, object]) -> None:
    """Add a diagnostic for each input that names no stage, the stage itself, a cycle, or a later stage."""
    order = {name: position for position, name in enumerate(stages)}
    inputs = {name: _input(stage) for name, stage in stages.items()}
    in_cycle: set[str] = set()
    for name, source in inputs.items():
        if source is None:
            _check_first(tree, name, stages)
            continue
        path: Path = ("stages", name, "input")
        cycle = _cycle(name, inputs)
        if source == name:
            _add(tree, path, f"stage `{name}` takes its own output as its input")
        elif source not in stages:
            message = f"`input` of stage `{visible(name, 80)}` names no stage: `{visible(source, 80)}`"
            others = [other for other in stages if other != name]
            known = f"stages are {', '.join(visible(other, 80) for other in others)}" if others else None
            _add(tree, path, message, suggest(source, others) or known)
        elif cycle:
            if name not in in_cycle:
                _add(tree, path, f"stages feed each other in a cycle: {' -> '.join([*cycle, cycle[0]])}")
            in_cycle.update(cycle)
        elif order[source] > order[name]:
            hint = f"write stage `{source}` before stage `{name}`"
            _add(tree, path, f"stage `{name}` takes its input from a later stage, `{source}`", hint)


def _check_first(tree: Tree, name: str, stages: Mapping[str, object]) -> None:
    """Require an input of every stage but the first, which takes the request itself."""
    first = next(iter(stages))
    stage = stages[name]
    if name == first or not isinstance(stage, dict) or "input" in stage:
        return
    before = list(stages)[list(stages).index(name) - 1]
    _add(
        tree,
        ("stages", name),
        f"stage `{visible(name, 80)}` has no `input`, and is not the first stage",
        f"add `input: {visible(before, 80)}`",
    )


def _input(stage: object) -> str | None:
    source = stage.get("input") if isinstance(stage, dict) else None
    return source if isinstance(source, str) else None


def _cycle(start: str, inputs: Mapping[str, str | None]) -> list[str]:
    """Return the stages of the cycle that contains `start`, in the direction of the data; [] if there is none."""
    way = [start]
    current = inputs[start]
    while current is not None and current in inputs and current not in way:
        way.append(current)
        current = inputs[current]
    return list(reversed(way)) if current == start else []


def _add(tree: Tree, path: Path, message: str, hint: str | None = None) -> None:
    if path in tree.faulty:
        return
    tree.faulty.add(path)
    place = tree.key_place(path) if path[-1] != "input" else tree.place(path)
    tree.diagnostics.append(Diagnostic(place, message, hint))
