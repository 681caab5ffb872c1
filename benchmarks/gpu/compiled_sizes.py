"""The cost of code for all sizes of a denoiser, and what it saves: calls, compilations, equal outputs.

    PYTHONPATH=. python benchmarks/gpu/compiled_sizes.py -o FILE.json [--rounds 10] [--tiny --device cpu]

The denoiser of Qwen-Image in two sizes, *big* with 60 blocks (20.4 B, 4,096 image tokens) and *small* with 16 of half
the width (1.4 B, 1,024), random bfloat16 weights. Its blocks are compiled as omni compiles them, for all sizes, and by
torch's default: for the first size, and for others as they come. Both run the same weights, interleaved; each turn
lasts a second. Then sizes and lengths of text change and come back: seconds of the first call of each, and whether the
first size has the same bits afterwards.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from omni_cli.core.compat.torchvision import ensure_torchvision_importable

ensure_torchvision_importable()

import torch
from diffusers import QwenImageTransformer2DModel
from torch._inductor.compile_fx import compile_fx

from omni_cli.backends.execution.modes import CompiledMode, compile_graph, repeated_blocks

SIZES = {"small": (16, 12, 32), "big": (60, 24, 64)}  # blocks, heads of 128, side in tokens
TURN_S = 1.0


class Side:
    """The blocks' forwards of one way to compile them."""

    def __init__(self, model: torch.nn.Module, compile_all: Callable[[], None]) -> None:
        self._model = model
        compile_all()
        self._forwards = {name: module.forward for name, module in model.named_modules() if "forward" in vars(module)}
        for name in self._forwards:
            del model.get_submodule(name).forward

    def __call__(self, inputs: dict[str, Any]) -> torch.Tensor:
        for name, forward in self._forwards.items():
            self._model.get_submodule(name).forward = forward
        try:
            with torch.no_grad():
                return self._model(**inputs)[0]
        finally:
            for name in self._forwards:
                del self._model.get_submodule(name).forward


def compile_blocks(model: torch.nn.Module, dynamic: bool | None) -> None:
    is_cuda = next(model.parameters()).is_cuda

    def backend(graph: Any, inputs: Any) -> Any:
        # A backend of its own: torch would otherwise run the code that another side has compiled.
        return compile_graph(graph, inputs) if is_cuda else compile_fx(graph, inputs)

    for block in repeated_blocks(model):
        block.forward = torch.compile(block.forward, fullgraph=True, dynamic=dynamic, backend=backend)


def make_inputs(model: QwenImageTransformer2DModel, height: int, width: int, text: int) -> dict[str, Any]:
    weight = next(model.parameters())
    generator = torch.Generator(weight.device).manual_seed(height * 1000 + width + text)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=weight.device, dtype=weight.dtype, generator=generator)

    return {
        "hidden_states": noise(1, height * width, model.config.in_channels),
        "encoder_hidden_states": noise(1, text, model.config.joint_attention_dim),
        "timestep": torch.full((1,), 0.5, device=weight.device, dtype=weight.dtype),
        "img_shapes": [[(1, height, width)]],
        "return_dict": False,
    }


def timed(call: Callable[[], torch.Tensor], device: str) -> tuple[float, torch.Tensor]:
    start = time.perf_counter()
    output = call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start, output


def turn(side: Side, inputs: dict[str, Any], device: str, turn_s: float) -> float:
    """Return the seconds per call of one turn."""
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < turn_s:
        for _ in range(4):
            side(inputs)
        if device == "cuda":
            torch.cuda.synchronize()
        count += 4
    return (time.perf_counter() - start) / count


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    blocks, heads, side_tokens = (2, 2, 8) if options.tiny else SIZES[name]
    torch.manual_seed(0)
    torch._dynamo.config.recompile_limit = 64
    dtype = torch.float32 if options.tiny else torch.bfloat16
    torch.set_default_dtype(dtype)
    with torch.device(options.device):
        model = QwenImageTransformer2DModel(num_layers=blocks, num_attention_heads=heads, attention_head_dim=128)
    torch.set_default_dtype(torch.float32)
    model.eval()
    # torch's default first, because omni's settings are those of the process.
    sides = {"as they come": Side(model, lambda: compile_blocks(model, None))}
    a = (side_tokens, side_tokens, 60)
    shapes = [a, (side_tokens, side_tokens, 77), (side_tokens // 2, side_tokens, 33), a]
    result: dict[str, Any] = {"blocks": blocks, "parameters": sum(p.numel() for p in model.parameters()), "sides": {}}
    for which in ("as they come", "all sizes"):
        if which == "all sizes":
            sides[which] = Side(model, lambda: modes.append(CompiledMode(model, stage="image")))
        calls = [timed(functools.partial(sides[which], make_inputs(model, *shape)), options.device) for shape in shapes]
        first, *_, again = (output for _, output in calls)
        result["sides"][which] = {
            "shapes": shapes,
            "first_calls_s": [round(seconds, 3) for seconds, _ in calls],
            "first_size_has_the_same_bits_again": bool(torch.equal(first, again)),
            "largest_difference": float((first - again).abs().max()),
        }
    # A length of text that none of them has had, as nearly every request's.
    inputs = make_inputs(model, side_tokens, side_tokens, 61)
    sides["one size"] = Side(model, lambda: compile_blocks(model, False))
    result["first_call_one_size_s"], _ = timed(lambda: sides["one size"](inputs), options.device)
    for side in sides.values():
        turn(side, inputs, options.device, options.turn_s)
    times: dict[str, list[float]] = {key: [] for key in sides}
    for number in range(options.rounds):
        for key in list(sides)[:: 1 if number % 2 else -1]:
            times[key].append(turn(sides[key], inputs, options.device, options.turn_s))
    ratios = {
        key: [b / a for a, b in zip(times[key], times["all sizes"], strict=True)]
        for key in ("one size", "as they come")
    }
    result["calls"] = {
        "median_s": {key: statistics.median(values) for key, values in times.items()},
        "all_sizes_over": {
            key: {"median": statistics.median(values), "range": [min(values), max(values)]}
            for key, values in ratios.items()
        },
        "times_s": times,
    }
    return result


modes: list[CompiledMode] = []


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--only", choices=SIZES, nargs="*", default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--turn-s", type=float, default=TURN_S)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="two small blocks, to try the script")
    options = parser.parse_args()
    record: dict[str, Any] = {"torch": torch.__version__, "device": options.device}
    if options.device == "cuda":
        record["device"] = torch.cuda.get_device_name()
    for name in options.only:
        record[name] = measure(name, options)
        calls, sides = record[name]["calls"], record[name]["sides"]
        sys.stdout.write(f"{name}: {calls['median_s']} s per call, all sizes over others {calls['all_sizes_over']}\n")
        for which, side in sides.items():
            same = side["first_size_has_the_same_bits_again"]
            sys.stdout.write(f"  {which}: first calls {side['first_calls_s']} s, first size again equal: {same}\n")
        sys.stdout.flush()
        options.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
