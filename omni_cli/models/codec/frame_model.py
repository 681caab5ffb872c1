"""A vLLM model that makes frames of codes, with a code predictor of transformers inside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import nn

from omni_cli.models.codec.code_predictor import CodeNetwork, CodePredictor, CodeSampling
from omni_cli.vllm_integration.conditioned_model import ConditionedModel


class FrameModel(ConditionedModel):
    """vLLM samples the first code of each frame; `predict_codes` draws the others within the step.

    A position's input is its condition row plus the embeddings of all its codes.
    """

    num_codebooks: int

    def embed_codes(self, index: int, codes: torch.Tensor) -> torch.Tensor:
        """Rows (num_codes, hidden_size) of codes (num_codes,) of codebook `index`, 0 for the backbone's."""
        raise NotImplementedError

    def use_predictor(self, network: CodeNetwork, sampling: CodeSampling, max_batch: int) -> None:
        """Allocate the code predictor's buffers, once the weights are where they stay."""
        weight = next(network.layers.parameters())
        # Not an attribute of a module: vLLM would look for weights of its name.
        self._predictors = (
            CodePredictor(
                network,
                num_codebooks=self.num_codebooks,
                max_batch=max_batch,
                sampling=sampling,
                dtype=weight.dtype,
                device=weight.device,
            ),
        )

    def predict_codes(
        self,
        hidden: torch.Tensor,
        first_codes: torch.Tensor,
        draws: torch.Tensor | None,
        is_greedy: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes (batch, num_codebooks) and input rows (batch, hidden_size) without the first code's embedding."""
        codes, rows = self._predictors[0](hidden, first_codes, draws, is_greedy)
        return codes, rows

    def rows_of_codes(self, codes: torch.Tensor) -> torch.Tensor:
        """Input rows (num_frames, hidden_size) of codes (num_frames, num_codebooks), as those of `predict_codes`."""
        rows = torch.zeros_like(self.embed_codes(0, codes[:, 0]))
        for index in range(1, self.num_codebooks):
            rows = rows + self.embed_codes(index, codes[:, index])
        return rows

    def add_rows(self, rows: torch.Tensor) -> None:
        """Add rows (num_tokens, hidden_size) to the conditions of the next forward pass."""
        self.conditions[: rows.shape[0]] += rows


def load_apart(
    weights: Iterable[tuple[str, torch.Tensor]], prefix: str, module: nn.Module, loaded: set[str]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the other weights, while those of `module` are copied to it and noted in `loaded`.

    They are called `prefix...`. vLLM's names for stacked weights are its own layers'; a predictor is transformers'.
    """
    own = dict(module.named_parameters())
    for name, weight in weights:
        parameter = own.get(name.removeprefix(prefix)) if name.startswith(prefix) else None
        if parameter is None:
            yield name, weight
        else:
            parameter.data.copy_(weight)
            loaded.add(name)
