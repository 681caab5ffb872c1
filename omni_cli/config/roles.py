"""The class that declares the keys of a profile's stage: its family's own, or the generic one of its kind."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError, create_model

from omni_cli.config.families import BUILTIN_PREFIX, Family, StageRole, builtins, families, get_family, load
from omni_cli.config.schema import STAGE_MODELS, EngineConfig, StageConfig
from omni_cli.core.errors import CheckpointError
from omni_cli.core.text import suggest


def find_family(model: object, stages: Collection[str]) -> Family | None:
    """Return the family of a profile's `model` if it is known without a download, or by the names of several stages."""
    if (family := _read_family(model)) is not None:
        return family
    named = [family for family in families().values() if sorted(role.name for role in family.roles) == sorted(stages)]
    return named[0] if len(named) == 1 and len(stages) > 1 else None


def _read_family(model: object) -> Family | None:
    if not isinstance(model, str):
        return None
    if model.startswith(BUILTIN_PREFIX):
        return builtins().get(model.removeprefix(BUILTIN_PREFIX))
    try:
        config = json.loads(Path(model, "config.json").read_bytes())
        (architecture, *_) = config["architectures"]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # not a folder, or not a transformers checkpoint; loading reports it
    return get_family(architecture) if isinstance(architecture, str) else None


def find_roles(family: Family | None, name: str, stage: Mapping[str, Any]) -> list[StageRole]:
    """Return the role of a stage with a usable `kind`.

    If the family is unknown, or has no such stage (which the check of the checkpoint reports), they are those of the
    stage's name and kind in any family.
    """
    kind, role = stage["kind"], family.role(name) if family is not None else None
    if role is not None and (role.kind, role.input) == (kind, stage.get("input")):
        return [role]
    return [role for one in families().values() for role in one.roles if (role.name, role.kind) == (name, kind)]


def find_stage_class(roles: Iterable[StageRole], stage: Mapping[str, Any]) -> type[StageConfig]:
    """Return the class for a stage with one of `roles`: the one with most of its keys."""
    candidates, kind = [get_stage_class(role) for role in roles if role.settings], stage["kind"]
    return max(candidates, key=lambda model: len(model.model_fields.keys() & stage.keys()), default=STAGE_MODELS[kind])


def get_stage_class(role: StageRole) -> type[StageConfig]:
    """Return the class that declares the keys of a role's stage."""
    model: type[StageConfig] = load(role.settings) if role.settings else STAGE_MODELS[role.kind]
    return model


def family_roles(kind: str | None = None) -> Iterator[tuple[Family, StageRole]]:
    """Yield the installed families' roles that have keys of their own."""
    for family in families().values():
        for role in family.roles:
            if role.settings and kind in (None, role.kind):
                yield family, role


def family_models(kind: str) -> list[type[StageConfig]]:
    """Return the classes with keys of their own, each once."""
    return list(dict.fromkeys(get_stage_class(role) for _, role in family_roles(kind)))


def for_family(config: EngineConfig, family: Family) -> EngineConfig:
    """Return the configuration with the family's classes for its stages, now that the family is known.

    Raises `CheckpointError` if a stage has keys of another family.
    """
    return config.with_stages(_for_role(stage, family) for stage in config.stages)


def _for_role(stage: StageConfig, family: Family) -> StageConfig:
    role = family.role(stage.name)
    model = get_stage_class(role) if role and role.kind == stage.kind else STAGE_MODELS[stage.kind]
    if type(stage) is model:
        return stage
    try:
        return stage.as_class(model)
    except ValidationError as error:
        key = str(error.errors()[0]["loc"][0])
        raise CheckpointError(
            f"the checkpoint is {family.title}, whose stage `{stage.name}` has no key `{key}`",
            hint=suggest(key, model.model_fields) or f"remove `{key}`, or choose another checkpoint (`--model`)",
        ) from error


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a profile, for editors' YAML language servers.

    A stage may have the keys of every installed family's stages of its kind.
    """
    schema = EngineConfig.model_json_schema()
    for kind, model in STAGE_MODELS.items():
        bases: tuple[type[BaseModel], ...] = tuple(family_models(kind)) or (model,)
        merged = create_model(model.__name__, __base__=bases, __doc__=model.__doc__).model_json_schema()
        schema["$defs"] |= merged.pop("$defs", {})
        schema["$defs"][model.__name__] = merged
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_without_null(schema), "title": "omni profile"}


def _without_null(node: Any) -> Any:
    """Remove `null` alternatives, because the engine's default is an absent key, not an empty one."""
    if isinstance(node, list):
        return [_without_null(item) for item in node]
    if not isinstance(node, dict):
        return node
    node = {key: _without_null(value) for key, value in node.items() if not (key == "default" and value is None)}
    if "patternProperties" in node:
        node["additionalProperties"] = False
    choices = [choice for choice in node.get("anyOf", ()) if choice != {"type": "null"}]
    if len(choices) == 1:
        del node["anyOf"]
        node = {**choices[0], **node}
    elif choices:
        node["anyOf"] = choices
    return node
