"""A safety checker for Cosmos that accepts everything: the real one downloads several language models."""

from __future__ import annotations

import torch
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config


class AcceptingChecker(ModelMixin, ConfigMixin):
    """The calls that the Cosmos pipelines make of `CosmosSafetyChecker`."""

    @register_to_config
    def __init__(self) -> None:
        super().__init__()
        self.unused = torch.nn.Parameter(torch.ones(1))

    def check_text_safety(self, prompt: str) -> bool:
        return True

    def check_video_safety(self, frames: object) -> object:
        return frames
