"""JSON Schema of a profile, for editors."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, create_model

from omni_cli.config.roles import family_models
from omni_cli.config.schema import STAGE_MODELS, EngineConfig


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
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **_without_null(schema),
        "title": "omni profile",
    }


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
