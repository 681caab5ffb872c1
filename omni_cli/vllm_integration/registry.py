"""Makes vLLM know our model classes, and resolve every architecture in this process."""

from __future__ import annotations

from typing import Any

# vLLM's own, and the language model that it looks up inside of it.
THINKER = ("Qwen2_5OmniModel", "Qwen2ForCausalLM")
TALKER = "Qwen2_5OmniTalkerForConditionalGeneration"
TOKEN2WAV = "Qwen2_5OmniToken2WavForDiffusion"


def register_models() -> None:
    """Register our model classes; every process that runs one calls this before vLLM resolves the architecture."""
    from omni_cli.models.qwen2_5_omni.talker import Qwen2_5OmniTalkerForConditionalGeneration
    from omni_cli.models.qwen2_5_omni.token2wav import Qwen2_5OmniToken2WavForDiffusion

    for architecture in THINKER:
        resolve_in_process(architecture)
    _register(TALKER, Qwen2_5OmniTalkerForConditionalGeneration)
    _register(TOKEN2WAV, Qwen2_5OmniToken2WavForDiffusion)


def resolve_in_process(architecture: str) -> None:
    """Have vLLM inspect one of its own model classes in this process.

    vLLM inspects lazily registered classes in a fresh interpreter, which costs seconds and knows nothing of the
    torchvision work-around (`omni_cli.compat.torchvision`). Unknown names are left for vLLM to refuse.
    """
    from vllm import ModelRegistry

    lazy = ModelRegistry.models.get(architecture)
    if lazy is not None:
        _register(architecture, lazy.load_model_cls())


def talker_config(config: Any) -> Any:
    """vLLM's `hf_overrides`: the talker's part of a Qwen2.5-Omni config.

    vLLM also calls it with an empty config, to see whether it changes the model type; that one stays as it is.
    """
    if not hasattr(config, "talker_config"):
        return config
    talker = config.talker_config
    talker.architectures = [TALKER]
    return talker


def _register(architecture: str, model: type) -> None:
    from vllm import ModelRegistry
    from vllm.model_executor.models.registry import _RegisteredModel

    if not isinstance(ModelRegistry.models.get(architecture), _RegisteredModel):
        ModelRegistry.register_model(architecture, model)
