"""The kernel of a frame's codes (`frame.cu`): compiled by torch for a model's sizes, with the model's weights."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeTalkerCodePredictorDecoderLayer

from omni_cli.core.compat import replace_attributes

SOURCE = Path(__file__).with_name("frame.cu")
# Programs, which wait for each other: each needs a multiprocessor of its own.
_PROGRAMS, _THREADS = 128, 256
# All shared memory of a multiprocessor of compute capability 9 or 10, which have copies in bulk.
SHARED_BYTES = 227 << 10
# Widths of the layers, of their heads together, and inside their MLPs: those of the releases.
_MOST_DEPTHS = (1024, 2048, 3072)
# More requests would need more registers than there are.
_MOST_REQUESTS = 32


class FrameKernel:
    """Draws codes with the weights of a `CodeNetwork` of transformers' layers, which become parts of larger tensors."""

    def __init__(
        self, network: Any, num_codebooks: int, sampling: Any, max_batch: int, programs: int = _PROGRAMS
    ) -> None:
        self._network, self._num_codes = network, num_codebooks - 1
        layers: Any = list(network.layers)
        attention, mlp = [layer.self_attn for layer in layers], [layer.mlp for layer in layers]
        config = attention[0].config
        qkv = _join([part.q_proj.weight for part in attention])
        (width, device, dtype), later = (qkv.shape[-1], qkv.device, qkv.dtype), range(1, num_codebooks)
        heads = torch.stack([network.head(index, torch.eye(width, device=device, dtype=dtype)).T for index in later])
        codes = torch.arange(heads.shape[1], device=device)
        cos, sin = network.rotary_emb(qkv, torch.arange(num_codebooks, device=device)[None])
        tables = torch.stack([network.embed(index, codes) for index in later])
        self._tables, self._offsets = tables.flatten(0, 1), torch.arange(len(later), device=device) * len(codes)
        norms = [norm.weight for layer in layers for norm in (layer.input_layernorm, layer.post_attention_layernorm)]
        self._weights = (
            qkv,
            _join([part.o_proj.weight for part in attention]),
            _join([part.gate_proj.weight for part in mlp]),
            _join([part.down_proj.weight for part in mlp]),
            torch.stack(norms),
            torch.stack([norm.weight for part in attention for norm in (part.q_norm, part.k_norm)]),
            network.norm.weight,
            heads,
            network.project(tables),
            cos[0].contiguous(),
            sin[0].contiguous(),
        )
        shared, size, self._rows = config.num_key_value_heads, attention[0].head_dim, min(max_batch, _MOST_REQUESTS)
        self.sizes: dict[str, Any] = {
            "LAYERS": len(layers), "NUM_CODES": self._num_codes, "WIDTH": width, "INNER": config.intermediate_size,
            "HEADS": config.num_attention_heads, "SHARED": shared, "SIZE": size, "CODES": len(codes),
            "PROGRAMS": programs, "TOP_K": sampling.top_k, "TOP_P": f"{float(sampling.top_p)}f",
            "TEMPERATURE": f"{float(sampling.temperature)}f", "EPSILON": f"{float(config.rms_norm_eps)}f",
        }  # fmt: skip
        # Each is there twice, of hidden states three.
        columns = (3 * width, qkv.shape[1], config.num_attention_heads * size, config.intermediate_size, len(codes))
        self._exchanged = torch.empty(2 * self._rows * sum(columns), device=device, dtype=torch.int16)
        self._rooms = (
            *self._exchanged.split([2 * self._rows * count for count in columns]),
            torch.empty((len(layers), self._rows, 2, shared, num_codebooks, size), device=device, dtype=dtype),
        )
        self._compiled: dict[int, Any] = {}

    @staticmethod
    def suits(network: Any, num_codebooks: int, top_k: int) -> bool:
        """True if the kernel has the operations and sizes of these layers, and a CUDA device has what it needs."""
        layer: Any = network.layers[0]
        weight = next(layer.parameters())
        if not weight.is_cuda or set(map(type, network.layers)) != {Qwen3OmniMoeTalkerCodePredictorDecoderLayer}:
            return False
        config = layer.self_attn.config
        depths = (config.hidden_size, config.num_attention_heads * layer.self_attn.head_dim, config.intermediate_size)
        device = torch.cuda.get_device_properties(weight.device)
        num_codes = network.head(1, weight.new_zeros((1, config.hidden_size))).shape[-1]
        return (
            torch.version.hip is None
            and device.major in (9, 10)
            and device.multi_processor_count >= _PROGRAMS
            and weight.dtype == torch.bfloat16
            and (config.hidden_act, config.attention_bias) == ("silu", False)
            and 2 < num_codebooks <= 32  # a warp's threads share the positions of a frame
            # A draw's lists take the room of the rows.
            and num_codes <= 2 * config.hidden_size
            and 0 < min(top_k, num_codes) <= config.hidden_size // 2
            and layer.self_attn.head_dim in (64, 128)
            # With more, a product's weights, or a group's queries, would not fit into shared memory.
            and all(depth % 256 == 0 and depth <= most for depth, most in zip(depths, _MOST_DEPTHS, strict=True))
            and config.num_attention_heads <= 8 * config.num_key_value_heads
        )

    def __call__(
        self, hidden: torch.Tensor, first_codes: torch.Tensor, draws: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Like `CodePredictor.forward`."""
        network = self._network
        given = network.project(torch.stack([hidden, network.embed(0, first_codes)], dim=1))
        codes = first_codes.new_empty((len(hidden), self._num_codes))
        for begin in range(0, len(hidden), _MOST_REQUESTS):
            part = slice(begin, begin + _MOST_REQUESTS)
            self._exchanged.fill_(-1)  # nothing is there yet
            self.launch((given[part], draws[part], codes[part], *self._weights, *self._rooms), len(codes[part]))
        return torch.cat([first_codes[:, None], codes], dim=1), self._tables[codes + self._offsets].sum(dim=1)

    def launch(self, tensors: Sequence[torch.Tensor], batch: int) -> None:
        """Run the kernel for a number of requests; `tensors` are its arguments before that number."""
        tiles = -(-batch // 8)
        self._compiled[tiles](
            grid=(self.sizes["PROGRAMS"], 1, 1), block=(_THREADS, 1, 1), args=[*tensors, batch, self._rows],
            shared_mem=SHARED_BYTES,
        )  # fmt: skip

    def compile(self) -> None:
        """Compile the kernel for each number of eights of requests, side by side."""
        from torch.utils import cpp_extension  # a tenth of a second

        # The kernel includes nothing, and torch asks for a toolkit's headers.
        home = cpp_extension.CUDA_HOME or "/usr"
        numbers = range(1, -(-self._rows // 8) + 1)
        with replace_attributes(cpp_extension, CUDA_HOME=home), ThreadPoolExecutor(len(numbers)) as pool:
            self._compiled = dict(zip(numbers, pool.map(self._compile, numbers), strict=True))

    def _compile(self, tiles: int) -> Any:
        with torch.cuda.device(self._exchanged.device):
            torch.cuda.synchronize()  # a thread has no context before its first call
            kernel = torch.cuda._compile_kernel(
                SOURCE.read_text(), "frame",
                cuda_include_dirs=[str(SOURCE.parent)], nvcc_options=self.definitions(tiles),
            )  # fmt: skip
            kernel.set_shared_memory_config(SHARED_BYTES)
        return kernel

    def definitions(self, tiles: int) -> list[str]:
        """Return the options of a compiler that define a kernel's sizes."""
        sizes = {**self.sizes, "TILES": tiles, "SHARED_BYTES": SHARED_BYTES}
        return [f"-D{name}={value}" for name, value in sizes.items()]


def _join(weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return weights of all layers as one tensor, whose parts they become."""
    together = torch.stack([weight.data for weight in weights])
    for weight, part in zip(weights, together, strict=True):
        weight.data = part
    return together
