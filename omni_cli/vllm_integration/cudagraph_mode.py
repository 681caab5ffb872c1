"""An AR stage's `cudagraph_mode`: refused where there are no graphs, and never less than what was asked for."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from vllm.platforms import current_platform

from omni_cli.config.schema import ARStageConfig
from omni_cli.errors import StageError


def check_platform(stage: ARStageConfig) -> None:
    """`StageError` where vLLM cannot have CUDA graphs at all; it would leave them out without a word."""
    if stage.cudagraph_mode != "none" and current_platform.is_cpu():
        raise StageError(
            f"`cudagraph_mode: {stage.cudagraph_mode}` needs a CUDA device, and the installed vLLM is for CPUs",
            stage=stage.name,
            hint=f"--set {stage.name}.cudagraph_mode=none",
        )


class ModeMessages(logging.Handler):
    """While entered, keeps what vLLM's log says about falling back to another mode, in this process."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def __enter__(self) -> ModeMessages:
        logging.getLogger("vllm").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("vllm").removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "cudagraph" in text.lower() and any(sign in text for sign in ("verriding", "setting cudagraph_mode")):
            self.texts.append(text)


def check_settled(stage: ARStageConfig, mode: str, engagement: Mapping[str, float], messages: ModeMessages) -> None:
    """`StageError` where vLLM has settled on another mode than the stage's, or has captured nothing for it."""
    asked = stage.cudagraph_mode
    if mode != asked:
        why = f": {messages.texts[-1]}" if messages.texts else ""
        raise StageError(
            f"`cudagraph_mode` is {asked}, but vLLM runs {mode}{why}",
            stage=stage.name,
            hint=f"--set {stage.name}.cudagraph_mode={mode}",
        )
    if mode != "none" and not engagement["graphs_captured"]:
        raise StageError(
            f"`cudagraph_mode` is {asked}, but vLLM has captured no graph",
            stage=stage.name,
            hint=f"--set {stage.name}.cudagraph_mode=none",
        )
