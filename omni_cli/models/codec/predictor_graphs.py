"""The code predictor's frames as CUDA graphs, captured for a few numbers of requests."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from omni_cli.execution.engagement import ExecutionCounters
from omni_cli.execution.graphs import NUM_WARMUPS, Graph, GraphBackend, batch_sizes
from omni_cli.models.codec.code_predictor import CodePredictor

# Graphs for fewer requests are slower: cuBLAS has faster matrix products for eight rows than for two.
SMALLEST = 8


@dataclass(frozen=True)
class _Captured:
    graph: Graph
    inputs: list[torch.Tensor]
    outputs: tuple[torch.Tensor, torch.Tensor]


class PredictorGraphs:
    """Has the interface of its predictor, and replays graphs once they are captured.

    There are two graphs per size: for steps whose requests are all greedy, and for others. Requests fill the first
    rows of the smallest graph that holds them. Rows are independent, so stale values in the rest are harmless. All
    graphs share one memory pool, since they run one after another.
    """

    def __init__(self, predictor: CodePredictor) -> None:
        self.predictor = predictor
        self._backend: GraphBackend | None = None
        self._graphs: dict[tuple[int, bool], _Captured] = {}
        self.counters = ExecutionCounters()

    @torch.inference_mode()
    def capture(self, backend: GraphBackend, hidden: torch.Tensor) -> None:
        """Capture the graphs of all sizes; `hidden` (max_batch, hidden_size) is an example of the backbone's."""
        start_s = time.perf_counter()
        self._backend = backend
        num_later = self.predictor.num_codebooks - 1
        for size in batch_sizes(len(hidden), SMALLEST):
            firsts = torch.zeros(size, dtype=torch.long, device=hidden.device)
            greedy = [hidden[:size].clone(), firsts]
            draws = torch.full((size, num_later), 0.5, device=hidden.device)
            is_greedy = torch.zeros((size, 1), dtype=torch.bool, device=hidden.device)
            for inputs in (greedy, [*(tensor.clone() for tensor in greedy), draws, is_greedy]):
                self._graphs[size, len(inputs) > len(greedy)] = self._captured(backend, inputs)
        self.counters.graphs_captured = len(self._graphs)
        self.counters.graph_pool_bytes = backend.pool_bytes() + sum(
            tensor.nbytes for captured in self._graphs.values() for tensor in captured.inputs
        )
        self.counters.capture_s = time.perf_counter() - start_s

    def _captured(self, backend: GraphBackend, inputs: list[torch.Tensor]) -> _Captured:
        def run() -> tuple[torch.Tensor, torch.Tensor]:
            outputs: tuple[torch.Tensor, torch.Tensor] = self.predictor(*inputs)
            return outputs

        for _ in range(NUM_WARMUPS):
            backend.warm_up(run)
        graph, outputs = backend.capture(run)
        assert isinstance(outputs, tuple)
        return _Captured(graph, inputs, outputs)

    def __call__(
        self,
        hidden: torch.Tensor,
        first_codes: torch.Tensor,
        draws: torch.Tensor | None,
        is_greedy: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Like `CodePredictor.forward`; the results belong to the caller."""
        if self._backend is None:
            self.counters.eager_calls += 1
            codes, rows = self.predictor(hidden, first_codes, draws, is_greedy)
            return codes, rows
        inputs = [hidden, first_codes]
        if draws is not None and is_greedy is not None:
            inputs += [draws, is_greedy]
        count = len(hidden)
        size = min(size for size, _ in self._graphs if size >= count)
        captured = self._graphs[size, len(inputs) > 2]
        self._backend.load([tensor[:count] for tensor in captured.inputs], inputs)
        captured.graph.replay()
        self.counters.graph_replays += 1
        codes, rows = (self._backend.clone(tensor[:count]) for tensor in captured.outputs)
        return codes, rows
