"""A vLLM model that generates frames of codes, with a code predictor of transformers inside."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import torch
from vllm.model_executor.models.utils import PPMissingLayer

from omni_cli.backends.execution.graphs import GraphBackend
from omni_cli.backends.vllm.input_embeds_stage import InputEmbedsModel
from omni_cli.models.codec.code_predictor import SMALLEST, CodeNetwork, CodePredictor, CodeSampling


class FrameModel(InputEmbedsModel):
    """vLLM samples the first code of each frame; `predict_codes` draws the others within the step.

    A position's input is a row from the request plus the embeddings of all its codes. `predictor_name` is the attribute
    with the predictor's module, missing on ranks without one.
    """

    predictor_name: ClassVar[str]
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
        """Load the model and return the names of the used weights."""
        loaded = super().load_weights(weights)
        if not isinstance(getattr(self, self.predictor_name), PPMissingLayer):
            self.predict_codes = CodePredictor(self.code_network(), self.num_codebooks, self.sampling)
            self.predictor_counters = self.predict_codes.counters
        return loaded

    def capture_predictor(self, backend: GraphBackend, *, compiles: bool) -> None:
        """Capture the predictor's CUDA graphs, of compiled code if `compiles`."""
        if compiles:
            self.predict_codes.compile_parts()
        device = next(self.parameters()).device
        codes = torch.arange(max(self.max_num_seqs, SMALLEST), device=device) % self.num_codebooks
        self.predict_codes.capture(backend, self.embed_codes(0, codes))

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return embeddings (num_tokens, hidden_size) of first codes and special ids."""
        return self.embed_codes(0, input_ids)

    def rows_of_codes(self, codes: torch.Tensor) -> torch.Tensor:
        """Return input rows (num_frames, hidden_size) of codes (num_frames, num_codebooks), as `predict_codes` does."""
        later = [self.embed_codes(index, codes[:, index]) for index in range(1, self.num_codebooks)]
        return torch.stack(later).sum(dim=0)
