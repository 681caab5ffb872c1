"""The model classes that vLLM lacks."""

from collections.abc import Iterable, Sequence

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.models.llama import LlamaForCausalLM
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper

from omni_cli.backends.vllm.diffusion_runner import DiffusionInput, DiffusionModel


class ToyWriter(LlamaForCausalLM):
    """vLLM's Llama; the checkpoint also has the painter's weights."""

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        return super().load_weights((name, weight) for name, weight in weights if not name.startswith("painter."))


class ToyPainter(DiffusionModel):
    """One colour per token; an image goes from noise to the colours of the words."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        self.size = config.image_size
        self.palette = nn.Embedding(config.vocab_size, 3)

    def sample(self, inputs: Sequence[DiffusionInput]) -> list[torch.Tensor]:
        """One image (size, size, 3) in [0, 1] per request."""
        return [self._paint(request) for request in inputs]

    def _paint(self, request: DiffusionInput) -> torch.Tensor:
        (num_steps,), (seed,) = request.information["num_inference_steps"], request.information["seed"]
        colours = self.palette(request.token_ids).sigmoid()
        goal = colours[torch.arange(self.size**2, device=colours.device) % len(colours)]
        pixels = torch.rand(goal.shape, generator=torch.Generator().manual_seed(seed)).to(goal.device)
        for _ in range(num_steps):
            pixels = pixels + (goal - pixels) / 2
        return pixels.reshape(self.size, self.size, 3)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        mapper = WeightsMapper(orig_to_new_prefix={"painter.": "", "model.": None, "lm_head.": None})
        return AutoWeightsLoader(self).load_weights(weights, mapper=mapper)
