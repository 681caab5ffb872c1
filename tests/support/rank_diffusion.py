"""A diffusion model whose layers are shared out over tensor and pipeline ranks, and workers that know it.

Tensor parallel in vLLM's own linear layers; pipeline parallel with intermediate tensors. What a request brings besides
its tokens is used on the first and on the last rank, so that it has to reach both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from vllm import ModelRegistry
from vllm.config import VllmConfig
from vllm.distributed import get_pp_group
from vllm.distributed.utils import get_pp_indices
from vllm.model_executor.layers.linear import ColumnParallelLinear, RowParallelLinear
from vllm.model_executor.models.interfaces import SupportsPP
from vllm.platforms import current_platform
from vllm.sequence import IntermediateTensors

from omni_cli.backends.vllm.diffusion_runner import DiffusionInput, DiffusionModel

if current_platform.is_cpu():
    from omni_cli.backends.vllm.cpu import CPUDiffusionWorker as DiffusionWorker
else:
    from omni_cli.backends.vllm.gpu import GPUDiffusionWorker as DiffusionWorker

ARCHITECTURE = "RankDiffusion"
NUM_LAYERS, SIZE, WIDTH = 4, 48, 96


class Layer(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.up = ColumnParallelLinear(SIZE, WIDTH, bias=False)
        self.down = RowParallelLinear(WIDTH, SIZE, bias=False)

    def fill(self) -> None:
        """The same weights however many ranks share them."""
        draw = torch.Generator("cpu").manual_seed(self.number)
        for linear, shape in ((self.up, (WIDTH, SIZE)), (self.down, (SIZE, WIDTH))):
            whole = torch.randn(shape, generator=draw, device="cpu") * shape[1] ** -0.5
            linear.weight.weight_loader(linear.weight, whole)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.down(torch.tanh(self.up(hidden)[0]))[0]


class RankDiffusion(DiffusionModel, SupportsPP):
    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        pipeline = get_pp_group()
        first, last = get_pp_indices(NUM_LAYERS, pipeline.rank_in_group, pipeline.world_size)
        self.layers = nn.ModuleList(Layer(number) for number in range(first, last))

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        for layer in self.layers:
            layer.fill()
        return {name for name, _ in self.named_parameters()}

    def make_empty_intermediate_tensors(
        self, batch_size: int, dtype: torch.dtype, device: torch.device
    ) -> IntermediateTensors:
        return IntermediateTensors({"hidden_states": torch.zeros(batch_size, SIZE, dtype=dtype, device=device)})

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        return torch.sin(input_ids[:, None].float() * torch.arange(1, SIZE + 1, device=input_ids.device))

    def sample(self, inputs: Sequence[DiffusionInput], intermediate_tensors: IntermediateTensors | None = None) -> Any:
        lengths = [request.token_ids.shape[0] for request in inputs]
        device = inputs[0].token_ids.device
        if get_pp_group().is_first_rank:
            parts = [self.embed_input_ids(each.token_ids) * each.information["scale"].to(device) for each in inputs]
            hidden = torch.cat(parts)
        else:
            hidden = intermediate_tensors["hidden_states"][: sum(lengths)]
        for layer in self.layers:
            hidden = layer(hidden)
        if not get_pp_group().is_last_rank:
            return IntermediateTensors({"hidden_states": hidden})
        return [
            part + each.information["shift"].to(device)
            for part, each in zip(hidden.split(lengths), inputs, strict=True)
        ]


class RankDiffusionWorker(DiffusionWorker):
    pass


# Workers in processes of their own import this module and nothing else of the tests.
ModelRegistry.register_model(ARCHITECTURE, RankDiffusion)
