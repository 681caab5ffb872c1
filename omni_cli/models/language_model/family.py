"""Any language model that vLLM supports: one stage, text to text."""

from __future__ import annotations

from omni_cli.families import Family, StageRole

FAMILY = Family(
    name="language_model",
    title="a language model",
    roles=(
        StageRole(
            name="model",
            kind="ar",
            backend="vllm",
            stage="omni_cli.vllm_integration.stage:TextStage",
            makes="text",
        ),
    ),
    profile="omni_cli.models.language_model.profile:stages_of",
)
