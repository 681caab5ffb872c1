"""The code predictor's frames as CUDA graphs, captured for a few numbers of requests."""

from __future__ import annotations

import torch

from omni_cli.execution.counters import ExecutionCounters
from omni_cli.execution.cuda_graphs import RowGraphs
from omni_cli.execution.graphs import GraphBackend, batch_sizes
from omni_cli.models.codec.code_predictor import CodePredictor

# Graphs for fewer requests are slower: cuBLAS has faster matrix products for eight rows than for two.
SMALLEST = 8


class PredictorGraphs:
    """Has the interface of its predictor, and replays graphs once they are captured.

    There are two graphs per size: for steps whose requests are all greedy, and for others.
    """

    def __init__(self, predictor: CodePredictor) -> None:
        self.predictor = predictor
        self._graphs = RowGraphs()

    @property
    def counters(self) -> ExecutionCounters:
        return self._graphs.counters

    @torch.inference_mode()
    def capture(self, backend: GraphBackend, hidden: torch.Tensor) -> None:
        """Capture the graphs of all sizes; `hidden` (max_batch, hidden_size) is an example of the backbone's."""
        num_later = self.predictor.num_codebooks - 1
        for size in batch_sizes(len(hidden), SMALLEST):
            firsts = torch.zeros(size, dtype=torch.long, device=hidden.device)
            greedy = [hidden[:size].clone(), firsts]
            draws = torch.full((size, num_later), 0.5, device=hidden.device)
            is_greedy = torch.zeros((size, 1), dtype=torch.bool, device=hidden.device)
            for inputs in (greedy, [*(tensor.clone() for tensor in greedy), draws, is_greedy]):
                self._graphs.capture(backend, len(inputs), self.predictor, inputs)

    def __call__(
        self,
        hidden: torch.Tensor,
        first_codes: torch.Tensor,
        draws: torch.Tensor | None,
        is_greedy: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Like `CodePredictor.forward`; the results belong to the caller."""
        inputs = [hidden, first_codes]
        if draws is not None and is_greedy is not None:
            inputs += [draws, is_greedy]
        codes, rows = self._graphs.run(len(inputs), self.predictor, len(hidden), inputs)
        return codes, rows
