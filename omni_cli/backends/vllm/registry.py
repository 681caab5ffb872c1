"""Register the model classes of the installed families with vLLM, and resolve architectures in this process."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from omni_cli.config.families import families
from omni_cli.core.errors import StageError

if TYPE_CHECKING:
    from omni_cli.stage.protocol import StageSpec

PLUGIN = "omni_cli"


def register_models() -> None:
    """Register the models that vLLM lacks, without importing them.

    The entry point `omni_cli` of the group `vllm.general_plugins`: vLLM calls this in each of its processes. Models
    that are registered stay as they are, because `resolve_in_process` may have resolved them.
    """
    from vllm import ModelRegistry

    for family in families().values():
        for architecture, reference in family.models.items():
            if architecture not in ModelRegistry.models:
                ModelRegistry.register_model(architecture, reference)


def prepare_models(spec: StageSpec) -> None:
    """Make vLLM load its plugins, and resolve the architectures of this stage's engine.

    Raises `StageError` if the plugin that registers our models is disabled.
    """
    from vllm import ModelRegistry
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    missing = [name for name in spec.family.models if name not in ModelRegistry.models]
    if missing:
        allowed = os.environ.get("VLLM_PLUGINS")
        why, hint = "vLLM has not loaded", "install omni-cli again; `-v` shows what vLLM says"
        if allowed is not None:
            why = f"VLLM_PLUGINS={allowed} keeps vLLM from loading"
            hint = f"export VLLM_PLUGINS={','.join(filter(None, (allowed, PLUGIN)))}"
        what = f"the plugin `{PLUGIN}`, which registers {missing[0]}"
        raise StageError(f"{why} {what}", stage=spec.stage.name, hint=hint)
    # A sole one that no model of ours builds is what vLLM makes of the checkpoint's own name.
    inner = () if spec.family.models else spec.family.inner_architectures
    for architecture in (spec.architecture, *spec.family.models, *inner):
        resolve_in_process(architecture)


def resolve_inner(architectures: Iterable[str]) -> None:
    """Resolve the architectures that vLLM looks up while it builds these, in this process, which may be a rank."""
    for family in families().values():
        if not {*family.architectures, *family.models}.isdisjoint(architectures):
            for inner in family.inner_architectures:
                resolve_in_process(inner)


def resolve_in_process(architecture: str) -> None:
    """Make vLLM inspect a model class in this process.

    vLLM would inspect it in a new interpreter, which takes seconds and lacks the torchvision workaround
    (`omni_cli.core.compat.torchvision`). vLLM rejects unknown names later.
    """
    from vllm import ModelRegistry
    from vllm.model_executor.models.registry import _RegisteredModel

    model = ModelRegistry.models.get(architecture)
    if model is not None and not isinstance(model, _RegisteredModel):
        ModelRegistry.register_model(architecture, model.load_model_cls())
