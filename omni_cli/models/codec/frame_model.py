"""A vLLM model that generates frames of codes, with a code predictor of transformers inside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar

import torch
from vllm.model_executor.model_loader.weight_utils import default_weight_loader
from vllm.model_executor.models.utils import PPMissingLayer

from omni_cli.backends.execution.counters import ExecutionCounters
from omni_cli.backends.execution.graphs import GraphBackend
from omni_cli.backends.vllm.input_embeds_stage import InputEmbedsModel
from omni_cli.models.codec.code_predictor import (
    SMALLEST,
    CodeNetwork,
    CodePredictor,
    CodeSampling,
    PredictorGraphs,
    stack_projections,
)


class FrameModel(InputEmbedsModel):
    """vLLM samples the first code of each frame; `predict_codes` draws the others within the step.

    A position's input is a row from the request plus the embeddings of all its codes. `predictor_name` is the attribute
    with the predictor's module, missing on ranks without one, and the prefix of its weights' names after
    `weights_prefix`.
    """

    predictor_name: ClassVar[str]
    weights_prefix: ClassVar[str] = ""
    sampling: CodeSampling
    num_codebooks: int
    max_num_seqs: int

    def code_network(self) -> CodeNetwork:
        """Return the parts of the predictor's module that draw codes."""
        raise NotImplementedError

    def embed_codes(self, index: int, codes: torch.Tensor) -> torch.Tensor:
        """Return rows (num_codes, hidden_size) of codes (num_codes,) of codebook `index`, 0 for the backbone's."""
        raise NotImplementedError

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load the model, allocate the code predictor's buffers, and return the names of the used weights."""
        apart: set[str] = set()
        loaded = super().load_weights(self._load_predictor(weights, apart))
        if not isinstance(getattr(self, self.predictor_name), PPMissingLayer):
            network = self.code_network()
            stack_projections(network.layers)
            weight = next(network.layers.parameters())
            predictor = CodePredictor(
                network,
                num_codebooks=self.num_codebooks,
                max_batch=max(self.max_num_seqs, SMALLEST),
                sampling=self.sampling,
                dtype=weight.dtype,
                device=weight.device,
            )
            self._graphs = PredictorGraphs(predictor)
        return loaded | apart

    def _load_predictor(
        self, weights: Iterable[tuple[str, torch.Tensor]], loaded: set[str]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the weights of other parts; copy the predictor's to it and note them in `loaded`.

        vLLM's names for stacked weights apply to its own layers, but the predictor's are transformers'.
        """
        own = dict(getattr(self, self.predictor_name).named_parameters())
        for name, weight in weights:
            inner = name.removeprefix(self.weights_prefix)
            parameter = own.get(inner.removeprefix(f"{self.predictor_name}."))
            if parameter is None or not inner.startswith(f"{self.predictor_name}."):
                yield name, weight
            else:
                default_weight_loader(parameter, weight)
                loaded.add(inner)

    def predict_codes(
        self, hidden: torch.Tensor, first_codes: torch.Tensor, draws: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return codes (batch, num_codebooks) and input rows (batch, hidden_size), without the first code's row."""
        return self._graphs(hidden, first_codes, draws)

    def capture_predictor(self, backend: GraphBackend, *, compiles: bool) -> None:
        """Capture the predictor's CUDA graphs, of compiled code if `compiles`."""
        predictor = self._graphs.predictor
        if compiles:
            predictor.compile_parts()
        codes = torch.arange(predictor.max_batch, device=predictor.device) % self.num_codebooks
        self._graphs.capture(backend, self.embed_codes(0, codes))

    @property
    def predictor_counters(self) -> ExecutionCounters:
        """Counters of the predictor's calls."""
        return self._graphs.counters

    def rows_of_codes(self, codes: torch.Tensor) -> torch.Tensor:
        """Return input rows (num_frames, hidden_size) of codes (num_frames, num_codebooks), as `predict_codes` does."""
        later = [self.embed_codes(index, codes[:, index]) for index in range(1, self.num_codebooks)]
        return torch.stack(later).sum(dim=0)
