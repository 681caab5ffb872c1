"""Messages for pydantic's errors about a profile: the expected value, the given one, and a suggestion."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from pydantic.fields import FieldInfo

from omni_cli.config.roles import family_roles, get_stage_class
from omni_cli.config.schema import PROFILE_KEYS, STAGE_MODELS, ARStageConfig, StageConfig
from omni_cli.config.stage_keys import ContextParallel, Sampling, StrictKeys, notes_on
from omni_cli.config.yaml_tree import Tree, TreePath, parse_scalar
from omni_cli.core.text import suggest, visible

_EXPECTED_TYPE = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "string_type": "a string",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
_LIMIT = {
    "greater_than": "greater than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "string_too_long": "at most {max_length} characters long",
}
_NESTED_MODELS: Mapping[str, type[StrictKeys]] = {"sampling": Sampling, "context_parallel": ContextParallel}
Models = Mapping[str, type[StageConfig]]
"""The class that declares the keys of each stage, by the stage's name."""

_CALL = "further arguments of a diffusers pipeline belong in `call`"


def to_path(location: tuple[str | int, ...], data: Any) -> TreePath:
    """Strip pydantic's location of parts that are not in the data: the names of union members and `[key]`."""
    limit = 4 if location[2:3] == ("call",) else len(location)  # every value of `call` is one union
    path: list[str | int] = []
    for part in location[:limit]:
        is_key = isinstance(data, dict) and part in data
        if is_key or (isinstance(data, list) and isinstance(part, int) and part < len(data)):
            data = data[part]
        else:
            continue
        path.append(part)
    return tuple(path)


# What the names of a mapping's keys are, and what they may contain.
_KEYS: dict[str, tuple[str, str | None]] = {"lora": ("adapter", "use letters, digits, `_` and `-`")}


def value_at(data: Any, path: TreePath) -> Any:
    for part in path:
        data = data[part]
    return data


def describe_error(error: Mapping[str, Any], path: TreePath, tree: Tree, models: Models) -> tuple[str, str | None]:
    """Return message and hint for one of pydantic's errors other than unknown and missing keys."""
    kind = error["type"]
    name = _name(path)
    value = value_at(tree.data, path)
    if error["loc"][-1] == "[key]":
        if len(path) == 2:
            return f"invalid stage name {name}", notes_on(PROFILE_KEYS["stages"]).pattern
        what, hint = _KEYS.get(str(path[-2]), ("argument", None))
        return f"invalid {what} name {name}{_where(path[:-1])}", hint
    if (expected := _union_expected(path)) is not None:
        return f"invalid type for {name}: expected {expected}, got {_describe_type(value)}", None
    if kind in _EXPECTED_TYPE:
        hint = _type_hint(kind, value, path in tree.quoted)
        return (f"invalid type for {name}: expected {_EXPECTED_TYPE[kind]}, got {_describe_type(value)}", hint)
    if kind == "literal_error":
        key = _key_at(path, models)
        # As YAML writes them: `true` and `false`.
        choices = [
            choice if isinstance(choice, str) else json.dumps(choice) for choice in _literal_values(key.annotation)
        ]
        hint = None
        if isinstance(value, str):
            hint = notes_on(key).elsewhere.get(value) or suggest(value, choices) or notes_on(key).pattern
        one_of = "one of " if len(choices) > 1 else ""
        return f"invalid value for {name}: expected {one_of}{', '.join(choices)}", hint
    if kind == "finite_number":
        return f"invalid value for {name}: expected a finite number", None
    if kind in _LIMIT:
        return (f"invalid value for {name}: must be {_LIMIT[kind].format(**_plain_numbers(error['ctx']))}", None)
    if kind == "too_short":
        return "a profile needs at least one stage", None
    if kind == "string_too_short":
        return f"invalid value for {name}: must not be empty", None
    if kind == "string_pattern_mismatch":
        expected = notes_on(_key_at(path, models)).pattern or f"must match {error['ctx']['pattern']}"
        return f"invalid value for {name}: {expected}", None
    return f"invalid value for {name}: {error['msg']}", None


def unknown_key(path: TreePath, data: object, models: Models) -> tuple[str, str | None]:
    """Return message and hint for a key that is not in the schema."""
    key = str(path[-1])
    if key == "trust_remote_code":
        return (
            "`trust_remote_code` cannot be set in a profile",
            "code of a checkpoint runs only with the command-line flag `--trust-remote-code`",
        )
    known = known_keys(path[:-1], models)
    hint = _other_home(key, path, data, models) or suggest(key, known)
    return f"unknown key `{visible(key, 80)}`{_where(path[:-1])}", hint


def is_misspelt(key: str, mapping: Mapping[str, object]) -> bool:
    """True if a required key is present under a similar name, which is reported as an unknown key."""
    known = PROFILE_KEYS
    return any(suggest(other, known) == f"did you mean `{key}`?" for other in mapping if other not in known)


def missing_key(path: TreePath, key: str) -> tuple[str, str | None]:
    """Return message and hint for a required key."""
    declarations = ARStageConfig.model_fields if path else PROFILE_KEYS
    hint = notes_on(declarations[key]).missing
    return f"missing key `{key}`{_where(path)}", hint


def known_keys(path: TreePath, models: Models) -> Iterable[str]:
    """Return the keys that the mapping at `path` may have; empty if any is allowed."""
    if path == ():
        return PROFILE_KEYS
    if len(path) == 2 and path[0] == "stages":
        return models[str(path[1])].model_fields
    if len(path) == 3 and path[2] in _NESTED_MODELS:
        return _NESTED_MODELS[str(path[2])].model_fields
    return ()


def _other_home(key: str, path: TreePath, data: Any, models: Models) -> str | None:
    """Return a hint at the location of a key that is known elsewhere."""
    if len(path) == 1:
        homes = _stages_with(key, data, models)
        is_stage_key = any(key in model.model_fields for model in (*STAGE_MODELS.values(), *models.values()))
        if is_stage_key or key in Sampling.model_fields:
            where = "" if is_stage_key else "'s `sampling`"
            return f"`{key}` belongs in a stage{where}" + (f": {' or '.join(homes)}" if homes else "")
        pipelines = _stages_with(f"call.{key}", data, models)
        return f"{_CALL}: {pipelines[0]}" if pipelines and suggest(key, PROFILE_KEYS) is None else None
    if key in PROFILE_KEYS:
        return f"`{key}` is a key of the whole profile, not of a stage"
    if len(path) == 4:
        return f"`{key}` is a key of the stage itself" if key in ARStageConfig.model_fields else None
    kind = data["stages"][path[1]]["kind"]
    if kind == "ar" and key in Sampling.model_fields:
        return f"`{key}` belongs in this stage's `sampling`"
    for other, model in STAGE_MODELS.items():
        if other != kind and key in model.model_fields:
            return f"`{key}` is a key of stages of kind `{other}`"
    owners = [(family.title, role.name) for family, role in family_roles() if key in get_stage_class(role).model_fields]
    if owners:
        *others, last = (f"{title}'s stage `{name}`" for title, name in owners)
        return f"`{key}` is a key of {', '.join(others)}{' and ' * bool(others)}{last}"
    own = models[str(path[1])].model_fields
    if kind == "diffusion" and suggest(key, own) is None:
        longer = [name for name in own if name.endswith(f"_{key}")]
        return f"did you mean `{longer[0]}`?" if len(longer) == 1 else _CALL
    return None


def _stages_with(key: str, data: object, models: Models) -> list[str]:
    """Return `STAGE.KEY` of all stages that can have the key, even if the rest of the profile is invalid."""
    stages = data.get("stages") if isinstance(data, Mapping) else None
    names = []
    for name, stage in stages.items() if isinstance(stages, Mapping) else ():
        kind = stage.get("kind") if isinstance(stage, Mapping) else None
        model = models.get(str(name)) if isinstance(kind, str) else None
        if model is not None and key in model.model_fields:
            names.append(f"`{visible(str(name), 40)}.{key}`")
        elif kind == "ar" and key in Sampling.model_fields:
            names.append(f"`{visible(str(name), 40)}.sampling.{key}`")
        elif key.startswith("call.") and isinstance(stage, Mapping) and stage.get("backend") == "diffusers":
            names.append(f"`{visible(str(name), 40)}.{visible(key, 80)}`")
    return names


def _where(path: TreePath) -> str:
    if len(path) < 2:
        return ""
    stage = f"stage `{visible(str(path[1]), 80)}`"
    return f" in {stage}" if len(path) == 2 else f" in `{path[2]}` of {stage}"


def _name(path: TreePath) -> str:
    """Name the last key of a path, and items of a list by their number from 1."""
    if path and isinstance(path[-1], int):
        return f"item {path[-1] + 1} of `{path[-2]}`"
    return f"`{visible(str(path[-1]), 80)}`" if path else "the profile"


def _union_expected(path: TreePath) -> str | None:
    """Return the types of a key that may have several; None for other keys."""
    if path[2:] == ("sampling", "stop"):
        return "a string or a list of strings"
    is_argument = path[2:3] == ("call",) and len(path) == 4
    return "a number, a string, true or false, null, or lists of them" if is_argument else None


def _describe_type(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"the number {visible(str(value), 40)}"
    if isinstance(value, str):
        return f'the string "{visible(value, 40)}"'
    return "a list" if isinstance(value, list) else "nothing" if value is None else "a mapping"


def _type_hint(kind: str, value: Any, quoted: bool) -> str | None:
    if isinstance(value, str):
        meant = parse_scalar(value)
        if quoted and not isinstance(meant, str) and meant is not None:
            return "remove the quotes"
        words = {"yes": "true", "on": "true", "no": "false", "off": "false"}
        if kind == "bool_type" and value.lower() in words:
            return f"write `{words[value.lower()]}`"
    if kind == "string_type" and isinstance(value, int | float):
        return "put it in quotes"
    if kind == "list_type":
        return "write a list: `[...]`"
    is_whole = isinstance(value, float) and value.is_integer()
    return f"write `{int(value)}`" if kind.startswith("int_") and is_whole else None


def _plain_numbers(limits: Mapping[str, object]) -> dict[str, object]:
    """Format limits as a user would write them: `0`, not `0.0`."""
    return {
        key: int(value) if isinstance(value, float) and value.is_integer() else value for key, value in limits.items()
    }


def _key_at(path: TreePath, models: Models) -> FieldInfo:
    """Return the declaration of the key at `path`, in the profile or in a stage."""
    return PROFILE_KEYS[str(path[0])] if len(path) == 1 else models[str(path[1])].model_fields[str(path[2])]


def _literal_values(annotation: object) -> list[object]:
    values: list[object] = []
    for argument in get_args(annotation):
        if isinstance(argument, str | int):
            values.append(argument)
        elif argument is not type(None):
            values.extend(_literal_values(argument))
    return values
