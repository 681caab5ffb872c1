"""The kernel of a frame's codes, its threads emulated on the CPU: the codes of the layers that it replaces."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.code_predictors import CODEBOOKS, CODES, kernel_predictor, misdrawn
from support.fake_graphs import FakeBackend

from omni_cli.models.codec.code_predictor import CodePredictor, CodeSampling
from omni_cli.models.codec.frame_kernel import SHARED_BYTES, SOURCE, FrameKernel

EMULATION = Path(__file__).parents[2] / "support/cuda_on_cpu.h"
PROGRAMS, THREADS = 4, 256
TYPES = ["const bf16*", "const float*", "long long*", *["const bf16*"] * 11, *["bf16*"] * 6]


class EmulatedKernel(FrameKernel):
    """Compiled by a C++ compiler, with all blocks and threads as fibers of one thread."""

    folder: Path

    def launch(self, tensors: Sequence[torch.Tensor], batch: int) -> None:
        tiles = -(-batch // 8)
        arguments = ", ".join(f"({kind})given[{index}]" for index, kind in enumerate(TYPES))
        source = self.folder / "frame.cpp"
        source.write_text(
            f'#include "{EMULATION}"\n#include "{SOURCE}"\n'
            'extern "C" void run(void** given, int batch, int most) {\n'
            f"    emulated::launch({PROGRAMS}, {THREADS}, {SHARED_BYTES}, "
            f"[=] {{ frame({arguments}, batch, most); }});\n}}\n"
        )
        library = self.folder / f"frame{tiles}.so"
        options = ["-std=c++17", "-O1", "-w", "-shared", "-fPIC", *self.definitions(tiles)]
        subprocess.run(["g++", *options, "-o", str(library), str(source)], check=True)
        pointers = (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))
        ctypes.CDLL(str(library)).run(pointers, batch, self._rows)


@pytest.mark.parametrize(("batch", "top_p"), [(3, 0.8), (10, 1.0)])
@torch.inference_mode()
def test_the_kernel_draws_the_codes_of_transformers_layers(tmp_path, batch, top_p):
    sampling = CodeSampling(20, top_p, 0.9)
    network, logits = kernel_predictor("cpu")
    generator = torch.Generator().manual_seed(batch)
    hidden = torch.randn(batch, 256, generator=generator).bfloat16()
    first = torch.arange(batch)
    draws = torch.rand(batch, CODEBOOKS - 1, generator=generator)
    draws[::2] = 0  # greedy
    expected = CodePredictor(network, CODEBOOKS, sampling).forward(hidden, first, draws)
    kernel = EmulatedKernel(network, CODEBOOKS, sampling, batch, programs=PROGRAMS)
    kernel.folder = tmp_path
    codes, rows = kernel(hidden, first, draws)
    assert torch.equal(
        rows, sum(network.embed(index, codes[:, index]).float() for index in range(1, CODEBOOKS)).bfloat16()
    )
    assert ((codes >= 0) & (codes < CODES)).all()
    assert (codes == expected[0]).float().mean() > 0.8  # rows go apart after codes as probable within bfloat16
    assert misdrawn(logits(hidden, codes), codes[:, 1:], draws, sampling).max() < 0.05
    # The layers still have their weights, as parts of the kernel's.
    again, _ = CodePredictor(network, CODEBOOKS, sampling).forward(hidden, first, draws)
    assert torch.equal(again, expected[0])


@torch.inference_mode()
def test_a_row_that_is_not_numbers_gets_codes_of_the_table_and_changes_no_other(tmp_path):
    network, _ = kernel_predictor("cpu")
    kernel = EmulatedKernel(network, CODEBOOKS, CodeSampling(20, 0.8), 3, programs=PROGRAMS)
    kernel.folder = tmp_path
    hidden = torch.randn(3, 256, generator=torch.Generator().manual_seed(1)).bfloat16()
    draws = torch.full((3, CODEBOOKS - 1), 0.5)
    expected, _ = kernel(hidden, torch.arange(3), draws)
    hidden[1] = float("nan")
    codes, _ = kernel(hidden, torch.arange(3), draws)
    assert ((codes >= 0) & (codes < CODES)).all()
    assert torch.equal(codes[[0, 2]], expected[[0, 2]])


@torch.inference_mode()
def test_a_greedy_code_of_an_infinite_logit_is_that_of_the_layers(tmp_path):
    network, _ = kernel_predictor("cpu", num_hidden_layers=1)
    network.norm.weight[3] = 100.0
    weight = torch.zeros(CODES, 256).bfloat16()
    weight[5, 3], weight[7, 3] = 3e38, -3e38
    network = replace(network, head=lambda _, hidden: torch.nn.functional.linear(hidden, weight))
    hidden = torch.randn(3, 256, generator=torch.Generator().manual_seed(1)).bfloat16()
    draws = torch.zeros(3, CODEBOOKS - 1)
    sampling = CodeSampling(20, 0.8)
    expected, _ = CodePredictor(network, CODEBOOKS, sampling).forward(hidden, torch.arange(3), draws)
    assert set(expected[:, 1:].flatten().tolist()) == {5, 7}
    kernel = EmulatedKernel(network, CODEBOOKS, sampling, 3, programs=PROGRAMS)
    kernel.folder = tmp_path
    assert torch.equal(kernel(hidden, torch.arange(3), draws)[0], expected)


@pytest.mark.parametrize(
    ("codebooks", "top_k", "sizes", "suits"),
    [
        (CODEBOOKS, 50, {}, True),
        (32, 50, {}, True),
        (33, 50, {}, False),
        (2, 50, {}, False),
        (CODEBOOKS, 0, {}, False),
        (CODEBOOKS, 1000, {}, True),
        (CODEBOOKS, 50, {"vocab_size": 512}, True),
        (CODEBOOKS, 128, {"vocab_size": 512}, True),
        (CODEBOOKS, 129, {"vocab_size": 512}, False),
        (CODEBOOKS, 50, {"vocab_size": 513}, False),
        (CODEBOOKS, 50, {"intermediate_size": 320}, False),
        (CODEBOOKS, 50, {"intermediate_size": 3072}, True),
        (CODEBOOKS, 50, {"intermediate_size": 3328}, False),
        (CODEBOOKS, 50, {"num_attention_heads": 36}, False),
        (CODEBOOKS, 50, {"num_attention_heads": 20}, False),
        (CODEBOOKS, 50, {"hidden_act": "gelu"}, False),
        (CODEBOOKS, 50, {"attention_bias": True}, False),
    ],
)
def test_a_network_that_the_kernel_would_compute_in_another_way_does_not_suit_it(
    monkeypatch, codebooks, top_k, sizes, suits
):
    device = SimpleNamespace(major=9, multi_processor_count=128)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: device)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    network, _ = kernel_predictor("cpu", num_hidden_layers=1, **sizes)
    assert FrameKernel.suits(network, codebooks, top_k) == suits
    device.major = 8  # no copies in bulk
    assert not FrameKernel.suits(network, codebooks, top_k)
    device.major = 9
    device.multi_processor_count = 127  # the programs would wait for one that has no room
    assert not FrameKernel.suits(network, codebooks, top_k)


@pytest.mark.slow
@pytest.mark.parametrize("tiles", [1, 4])
@pytest.mark.parametrize(("heads", "shared", "inner"), [(16, 16, 3072), (14, 14, 2816)])
def test_the_largest_sizes_that_suit_the_kernel_fit_into_a_device(tiles, heads, shared, inner):
    """As many requests, codes, kept codes and heads, and in the second case weights in parts of 256."""
    sizes = {
        "LAYERS": 5, "NUM_CODES": 31, "WIDTH": 1024, "INNER": inner, "HEADS": heads, "SHARED": shared, "SIZE": 128,
        "CODES": 2048, "TOP_K": 512, "TOP_P": "0.8f", "TEMPERATURE": "0.9f", "EPSILON": "1e-6f", "PROGRAMS": 128,
        "TILES": tiles, "SHARED_BYTES": SHARED_BYTES,
    }  # fmt: skip
    options = ["-std=c++17", "-w", "-fsyntax-only", *(f"-D{name}={value}" for name, value in sizes.items())]
    subprocess.run(["g++", *options, "-include", str(EMULATION), "-x", "c++", str(SOURCE)], check=True)


def test_without_a_compiler_frames_come_from_the_layers_and_a_warning_names_the_reason(monkeypatch, caplog):
    def compile_nothing(self: FrameKernel) -> None:
        raise OSError("Could not find any NVRTC library")

    monkeypatch.setattr(FrameKernel, "suits", staticmethod(lambda *_: True))
    monkeypatch.setattr(FrameKernel, "compile", compile_nothing)
    network, _ = kernel_predictor("cpu")
    predictor = CodePredictor(network, CODEBOOKS, CodeSampling(20, 0.8))
    hidden = torch.randn(8, 256, generator=torch.Generator().manual_seed(1)).bfloat16()
    with torch.inference_mode():
        expected, _ = predictor.forward(hidden, torch.arange(8))
        predictor.capture(FakeBackend(), torch.zeros_like(hidden))
        codes, _ = predictor(hidden, torch.arange(8))
    assert torch.equal(codes, expected)
    assert predictor.counters.graphs_captured == 2  # greedy and sampled
    assert "cannot be compiled: Could not find any NVRTC library" in caplog.text
