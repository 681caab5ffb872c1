"""Architectures that vLLM, transformers and diffusers have, read from their sources: importing them takes seconds."""

from __future__ import annotations

import functools
import re
from importlib.metadata import entry_points
from pathlib import Path

from omni_cli.checkpoints.files import index_file, read_family, read_model_kind, read_object
from omni_cli.config.families import find_file, hint_at_plugins
from omni_cli.core.errors import CheckpointError
from omni_cli.core.text import suggest

# What an architecture's name has beside the model's; vLLM converts one task's into another's.
_TASK = re.compile(r"(For[A-Z]\w*|Model|LMHeadModel)$")
_VLLM_NAME = re.compile(r'^    "(\w+)": \(', re.MULTILINE)
VLLM_MODELS = ("vllm", "model_executor", "models")
_AUTO = ("transformers", "models", "auto")
_CUSTOM_PIPELINE = "pipeline.py"


def check_known(folder: Path, *, trusts_code: bool) -> None:
    """Raise `CheckpointError` for an architecture that nothing installed has, or that needs code of its own.

    `trusts_code`: the checkpoint's own code may run.
    """
    kind = read_model_kind(folder)
    if index_file(folder) is not None:
        known = set(re.findall(r'"([A-Z]\w+)"', read_source("__init__", "diffusers")))
        if known and kind not in known and not (folder / _CUSTOM_PIPELINE).is_file():
            raise CheckpointError(f"diffusers has no class `{kind}`", hint=hint_at_plugins(suggest(kind, known)))
        return
    config = read_object(folder / "config.json")
    own_code = config.get("auto_map")
    if read_family(folder).is_named or (trusts_code and own_code):
        return
    if own_code and not (_is_known(kind) and _is_known_type(str(config.get("model_type")))):
        raise CheckpointError(
            f"`{folder}` is a {kind}, which needs code of its own repository",
            hint="`--trust-remote-code` lets the checkpoint's own code run, if you trust it",
        )
    if not _is_known(kind):
        raise CheckpointError(
            f"`{folder}` is a {kind}, which neither vLLM nor transformers knows here",
            hint=hint_at_plugins("choose another model; newer versions of the two may have it"),
        )


def _is_known(architecture: str) -> bool:
    """True if vLLM finds a class, of its own or of transformers, and where that cannot be seen from outside."""
    names = set(_VLLM_NAME.findall(read_source("registry", *VLLM_MODELS).partition("_PREVIOUSLY_SUPPORTED")[0]))
    plugins = entry_points(group="vllm.general_plugins")
    if not names or any(point.module.partition(".")[0] not in ("vllm", "omni_cli") for point in plugins):
        return True
    if _TASK.sub("", architecture) in {_TASK.sub("", name) for name in names}:
        return True
    return f'"{architecture}"' in read_source("modeling_auto", *_AUTO)


def _is_known_type(model_type: str) -> bool:
    """True if transformers or vLLM has a configuration class for a `model_type`."""
    named = any(f'"{model_type}"' in read_source(name, *_AUTO) for name in ("auto_mappings", "configuration_auto"))
    return named or f" {model_type}=" in read_source("config", "vllm", "transformers_utils")


@functools.cache
def read_source(module: str, package: str, *folders: str) -> str:
    """Return the source of `package.FOLDERS.module`, empty if it is not installed."""
    file = find_file(".".join((package, *folders, module)))
    return "" if file is None else file.read_text()
