"""Where the time of a double-stream diffusion block goes: compilation, shapes, attention, and fused projections.

    python benchmarks/gpu/double_stream_block.py [--rounds 12]

Blocks of the sizes of Qwen-Image (3,072 wide, 24 heads, 4,096 image tokens of 1024 x 1024, 64 of text, bfloat16) with
random weights, written here with torch alone, so that it runs where diffusers does not. Each variant has a process of
its own, interleaved with the plain blocks, which have the same weights; quoted are medians per block, their ratio,
and what 60 blocks would take. The bound is the block's matrix products and attention alone, measured at their shapes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

WIDTH, HEADS, BLOCKS, STACKED = 3072, 24, 60, 4
IMAGE_TOKENS, TEXT_TOKENS = 4096, 64
OTHER_IMAGE_TOKENS = 2304  # 768 x 768


class Stream(nn.Module):
    """Modulation, projections and MLP of one of the two streams."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.modulation = nn.Linear(WIDTH, 6 * WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.q_scale, self.k_scale = (nn.Parameter(torch.ones(WIDTH // HEADS)) for _ in range(2))

    def project(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if self.fused:
            q, k, v = self.qkv(x).chunk(3, dim=-1)
        else:
            weights, biases = self.qkv.weight.chunk(3), self.qkv.bias.chunk(3)
            q, k, v = (F.linear(x, weight, bias) for weight, bias in zip(weights, biases, strict=True))
        q, k, v = (part.unflatten(-1, (HEADS, -1)) for part in (q, k, v))
        shape = (WIDTH // HEADS,)
        return F.rms_norm(q, shape, self.q_scale, 1e-6), F.rms_norm(k, shape, self.k_scale, 1e-6), v


class Block(nn.Module):
    """Two streams with one attention over both."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.image, self.text = Stream(fused), Stream(fused)

    def forward(
        self, image: torch.Tensor, text: torch.Tensor, time: torch.Tensor, turn: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        streams, inputs = (self.text, self.image), (text, image)
        parts = [stream.modulation(F.silu(time)).unsqueeze(1).chunk(6, dim=-1) for stream in streams]
        normed = [F.layer_norm(x, (WIDTH,)) * (1 + part[1]) + part[0] for x, part in zip(inputs, parts, strict=True)]
        projected = [stream.project(x) for stream, x in zip(streams, normed, strict=True)]
        q, k, v = (torch.cat(pair, dim=1) for pair in zip(*projected, strict=True))
        q, k = (turned(x, turn) for x in (q, k))
        mixed = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)))
        split = mixed.transpose(1, 2).flatten(2).split([text.shape[1], image.shape[1]], dim=1)
        outputs = []
        for stream, x, part, attended in zip(streams, inputs, parts, split, strict=True):
            x = x + part[2] * stream.out(attended)
            again = F.layer_norm(x, (WIDTH,)) * (1 + part[4]) + part[3]
            outputs.append(x + part[5] * stream.down(F.gelu(stream.up(again), approximate="tanh")))
        return outputs[1], outputs[0]


def turned(x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    """Rotary positions: `turn` is complex64 (tokens, head / 2)."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turn[: x.shape[1]].unsqueeze(1)).flatten(-2).to(x.dtype)


class Stack(nn.Module):
    def __init__(self, fused: bool, compiled: dict[str, Any] | None) -> None:
        super().__init__()
        blocks = [Block(fused) for _ in range(STACKED)]
        self.blocks = nn.ModuleList(blocks)
        self._calls = blocks if compiled is None else [torch.compile(block, **compiled) for block in blocks]

    def forward(self, image: torch.Tensor, text: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        for call in self._calls:
            image, text = call(image, text, *others)
        return image


def milliseconds(call: Callable[[], Any]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


def inputs_of(tokens: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator("cuda").manual_seed(0)
    make = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.bfloat16, generator=generator)  # noqa: E731
    angles = torch.rand(
        tokens + TEXT_TOKENS, WIDTH // HEADS // 2, device="cuda", dtype=torch.float32, generator=generator
    )
    return (
        make(1, tokens, WIDTH),
        make(1, TEXT_TOKENS, WIDTH),
        make(1, WIDTH),
        torch.polar(torch.ones_like(angles), angles),
    )


def bound_ms() -> float:
    """Return the time of a block's matrix products at their shapes, the fastest of 20."""
    tokens, total = IMAGE_TOKENS, 0.0
    for rows in (tokens, TEXT_TOKENS):
        for into, out in ((WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)):
            a = torch.randn(rows, into, device="cuda", dtype=torch.bfloat16)
            b = torch.randn(into, out, device="cuda", dtype=torch.bfloat16)
            total += min(milliseconds(lambda a=a, b=b: a @ b) for _ in range(20))
    q = torch.randn(1, HEADS, tokens + TEXT_TOKENS, WIDTH // HEADS, device="cuda", dtype=torch.bfloat16)
    return total + min(milliseconds(lambda: F.scaled_dot_product_attention(q, q, q)) for _ in range(20))


VARIANTS: dict[str, tuple[bool, dict[str, Any] | None, SDPBackend | None, bool]] = {
    # fused projections, compilation, attention, another size seen before
    "eager": (False, None, None, False),
    "compiled": (False, {"dynamic": False}, None, False),
    "compiled, after another size": (False, {}, None, True),
    "compiled, dynamic": (False, {"dynamic": True}, None, False),
    "compiled, fused projections": (True, {"dynamic": False}, None, False),
    "compiled, cuDNN attention": (False, {"dynamic": False}, SDPBackend.CUDNN_ATTENTION, False),
    "compiled, fused, cuDNN": (True, {"dynamic": False}, SDPBackend.CUDNN_ATTENTION, False),
    "compiled, fused, flash": (True, {"dynamic": False}, SDPBackend.FLASH_ATTENTION, False),
}


@torch.inference_mode()
def measure(name: str, rounds: int) -> dict[str, Any]:
    """Measure a variant interleaved with the plain blocks; milliseconds per block."""
    torch.set_default_dtype(torch.bfloat16)
    fused, compiled, backend, seen = VARIANTS[name]
    torch.manual_seed(0)
    with torch.device("cuda"):
        plain, stack = Stack(fused=False, compiled=None), Stack(fused, compiled)
    stack.load_state_dict(plain.state_dict())
    inputs, other = inputs_of(IMAGE_TOKENS), inputs_of(OTHER_IMAGE_TOKENS)

    def call() -> torch.Tensor:
        with nullcontext() if backend is None else sdpa_kernel(backend):
            return stack(*inputs)

    for _ in range(3 if seen else 0):
        stack(*other)
    for _ in range(5):
        expected, found = plain(*inputs), call()
    times: dict[str, list[float]] = {"plain": [], "variant": []}
    for number in range(rounds):
        sides = [("plain", lambda: plain(*inputs)), ("variant", call)]
        for side, run in sides if number % 2 == 0 else reversed(sides):
            times[side].append(milliseconds(run) / STACKED)
    difference = (found.float() - expected.float()).abs().max() / expected.float().abs().max()
    return {**times, "max_difference": float(difference), "bound": bound_ms()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--variant", choices=tuple(VARIANTS), help="measure only this one, and print JSON")
    options = parser.parse_args()
    if options.variant:
        sys.stdout.write(json.dumps(measure(options.variant, options.rounds)) + "\n")
        return 0
    rounds = f"{options.rounds} interleaved rounds"
    sys.stdout.write(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {rounds}\n")
    for name in VARIANTS:
        command = [sys.executable, __file__, "--rounds", str(options.rounds), "--variant", name]
        ended = subprocess.run(command, capture_output=True, text=True)
        if ended.returncode:
            sys.stdout.write(f"{name:30} failed: {ended.stderr.strip().rpartition(chr(10))[2][:200]}\n")
            continue
        found = json.loads(ended.stdout.strip().rpartition("\n")[2])
        plain, median = (statistics.median(found[side]) for side in ("plain", "variant"))
        ratios = sorted(b / a for a, b in zip(found["plain"], found["variant"], strict=True))
        ratio = f"ratio {median / plain:5.3f} [{ratios[0]:.3f}, {ratios[-1]:.3f}]"
        line = f"{name:30} {median:6.3f} ms, plain {plain:6.3f}, {ratio}"
        bound = f"bound {found['bound']:6.3f}, difference {found['max_difference']:.0e}"
        sys.stdout.write(f"{line}, 60 blocks {BLOCKS * median:6.1f} ms, {bound}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
