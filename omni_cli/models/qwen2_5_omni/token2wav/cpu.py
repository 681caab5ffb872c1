"""token2wav with `batching: padded` on a CPU: oneDNN's linear layers, and a batch per thread."""

from __future__ import annotations

import torch
from torch import nn

from omni_cli.config.schema import Execution, Precision
from omni_cli.execution.precision import OneDnnLinear
from omni_cli.models.qwen2_5_omni.token2wav.platform import Platform

# Blocks in one call per thread, about one request of 2.5 s: more is no faster, and then the first waveforms come later
# and threads wait longer for each other.
BLOCKS_PER_THREAD = 24


class CpuPlatform(Platform):
    """torch's operations, with oneDNN's linear layers for float32 and eager execution."""

    def __init__(self, execution: Execution, precision: Precision) -> None:
        self.num_workers: int = torch.get_num_threads() if execution == "eager" else 1
        self._has_onednn = execution == "eager" and precision == "float32"

    def get_max_blocks(self, num_blocks: int) -> int:
        """Return a share of all blocks, so that there are batches for all workers."""
        threads_per_worker: int = torch.get_num_threads() // self.num_workers
        return min(BLOCKS_PER_THREAD * threads_per_worker, -(-num_blocks // self.num_workers))

    def make_linear(self, linear: nn.Linear, gelu: nn.GELU | None = None) -> nn.Module:
        return OneDnnLinear(linear, gelu) if self._has_onednn else super().make_linear(linear, gelu)
