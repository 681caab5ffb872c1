"""Qwen-Image as a user gets it, with the profile's default execution, interleaved with plain diffusers.

    PYTHONPATH=. python benchmarks/gpu/images.py -o FILE.json [--only big] [--at-once 1 4] [--set KEY=VALUE]

*big* is the released size, 60 blocks, 20.4 B parameters, at 1024 x 1024; *small* has 16 blocks of half the width, 1.4
B, at 512 x 512. Weights are random bfloat16; 20 steps, guidance 4, so two forwards per step. Each round has prompts of
lengths that no round had before. Both sides are resident over the same weights; their order alternates. Needs what
`diffusion_modes.py` needs. `--tiny --device cpu` runs the same code in a minute and is meaningless for speed.
"""

from __future__ import annotations

import argparse
import collections
import gc
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from omni_cli.compat.torchvision import ensure_torchvision_importable

ensure_torchvision_importable()

import models
import numpy as np
import torch

from omni_cli.config.schema import DiffusionStageConfig
from omni_cli.diffusers_integration.executor import DiffusersPipelineExecutor
from omni_cli.diffusers_integration.requests import DiffusionOutput, DiffusionRequest, DiffusionSchedulerOutput

STEPS = 20
GUIDANCE = 4.0
SIZES = {"big": (60, 24, 1024), "small": (16, 12, 512)}  # blocks, attention heads, pixels each way
_GIB = 2**30


def main() -> None:
    options = _options()
    device = torch.device(options.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    found: dict[str, Any] = {"device": name, "torch": torch.__version__, "set": options.set}
    for model in options.only:
        for part in measure(model, device, options):
            found[model] = part
            options.output.write_text(json.dumps(found, indent=1) + "\n")
        shown = ("medians_s", "ratios", "largest_difference", "least_psnr_db", "reserved_gib")
        _say(json.dumps({key: found[model][key] for key in shown}))
        gc.collect()
        _empty(device)


def measure(name: str, device: torch.device, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the results after each round."""
    layers, heads, size = (2, 2, 64) if options.tiny else SIZES[name]
    sizes = {"num_layers": layers, "num_attention_heads": heads}
    pipeline = models.make_qwen_image(device, tiny=options.tiny, sizes=sizes)
    _vary_lengths(pipeline)
    plain = Plain(pipeline, size)
    plain_memory = _memory_of(lambda: plain.run([_prompt(9)]), device)
    begin = time.perf_counter()
    ours = Omni(models.twin_pipeline(pipeline), size, device, dict(option.split("=", 1) for option in options.set))
    loading = _reserved(device)
    ready_s = time.perf_counter() - begin
    memory = _memory_of(lambda: ours.run([_prompt(9)]), device)
    effective = ours.executor.effective
    chosen = (effective["execution"], effective.get("attention_backend"), effective.get("execution_reason"))
    _say(f"{name}: ready in {ready_s:.1f} s, {chosen}")

    lengths = iter(range(10, 1000))
    times: dict[str, list[float]] = collections.defaultdict(list)
    differences = []
    for number in range(options.rounds):
        for at_once in options.at_once:
            # Several requests of one length, which plain diffusers can take as one batch.
            prompts = [_prompt(next(lengths))] * at_once
            sides = [("plain", plain), ("omni", ours)]
            made = {}
            for side_name, side in sides if number % 2 else sides[::-1]:
                seconds, completions, made[side_name] = side.run(prompts)
                times[f"{side_name} {at_once}"].append(seconds)
                times[f"{side_name} {at_once} mean completion"].append(statistics.mean(completions))
            if at_once == 1:  # in plain's batch of four, products round differently
                differences.append(_difference(made["omni"], made["plain"]))
        # The second time with this length.
        times["omni 1 again"].append(ours.run(prompts[:1])[0])
        yield {
            "ready_s": ready_s,
            "effective": {key: str(value) for key, value in effective.items()},
            "medians_s": {key: round(statistics.median(values), 4) for key, values in times.items()},
            "ratios": {
                at_once: _ratio(times[f"plain {at_once}"], times[f"omni {at_once}"]) for at_once in options.at_once
            },
            "largest_difference": max((largest for largest, _ in differences), default=None),
            "least_psnr_db": min((psnr for _, psnr in differences), default=None),
            "reserved_gib": {"loading": loading, "one request": memory, "plain": plain_memory},
            "counters": ours.executor.execution_counters,
            "times_s": times,
        }
    ours.executor.shutdown()


def _ratio(theirs: Sequence[float], own: Sequence[float]) -> float:
    return round(statistics.median(a / b for a, b in zip(theirs, own, strict=True)), 4)


class Plain:
    """diffusers' pipeline: several prompts as one batch."""

    def __init__(self, pipeline: Any, size: int) -> None:
        self._pipeline, self._size = pipeline, size

    def run(self, prompts: Sequence[str]) -> tuple[float, list[float], np.ndarray]:
        """Return the seconds until all images were on the host, those of each, and the first image."""
        start = time.perf_counter()
        made = self._pipeline(
            prompt=list(prompts), negative_prompt=[" "] * len(prompts), true_cfg_scale=GUIDANCE, height=self._size,
            width=self._size, num_inference_steps=STEPS, output_type="pt",
            generator=[torch.Generator("cpu").manual_seed(seed) for seed in range(len(prompts))],
        ).images  # fmt: skip
        pixels = made.movedim(-3, -1).float().mul(255).round().to(torch.uint8).cpu().numpy()
        seconds = time.perf_counter() - start
        return seconds, [seconds] * len(prompts), pixels[0]


class Omni:
    """The executor of a stage with the keys of the profile `qwen-image`."""

    def __init__(self, pipeline: Any, size: int, device: torch.device, keys: dict[str, Any]) -> None:
        stage = DiffusionStageConfig.named(
            "image", num_inference_steps=STEPS, height=size, width=size, negative_prompt=" ",
            call={"true_cfg_scale": GUIDANCE}, **keys,
        )  # fmt: skip
        self.executor = DiffusersPipelineExecutor(
            stage, "qwen-image", "bfloat16", device.type, prompt_cache_entries=0, make_pipeline=lambda: pipeline
        )
        self.executor.compile_or_warm_up_model()

    def run(self, prompts: Sequence[str]) -> tuple[float, list[float], np.ndarray]:
        start = time.perf_counter()
        completions: list[float] = []

        def note(_output: DiffusionOutput) -> None:
            completions.append(time.perf_counter() - start)

        requests = [
            self.executor.resolve(DiffusionRequest(str(seed), prompt, seed=seed)) for seed, prompt in enumerate(prompts)
        ]
        outputs = self.executor.execute_model(DiffusionSchedulerOutput(tuple(requests)), on_output=note).outputs
        for output in outputs:
            if output.error is not None:
                raise output.error
        return time.perf_counter() - start, completions, np.asarray(outputs[0].images[0])


def _vary_lengths(pipeline: Any) -> None:
    """Make a prompt's number of words the number of its tokens."""

    def encode_prompt(self: Any, prompt: str | list[str], **_: Any) -> tuple[torch.Tensor, None]:
        prompts = [prompt] if isinstance(prompt, str) else prompt
        row = self.random_prompt[:, : max(1, len(prompts[0].split()))]
        return row.expand(len(prompts), -1, -1), None

    type(pipeline).encode_prompt = encode_prompt


def _prompt(num_tokens: int) -> str:
    return " ".join(["word"] * num_tokens)


def _difference(made: np.ndarray, expected: np.ndarray) -> tuple[int, float]:
    """Return the largest difference of a value and the PSNR in dB."""
    error = made.astype(int) - expected.astype(int)
    squared = float((error**2).mean())
    return int(np.abs(error).max()), 10 * np.log10(255**2 / squared) if squared else float("inf")


def _memory_of(run: Any, device: torch.device) -> float:
    """Return the GiB that torch holds at most during a call, weights included."""
    _empty(device)
    run()
    return _reserved(device)


def _reserved(device: torch.device) -> float:
    return torch.cuda.max_memory_reserved(device) / _GIB if device.type == "cuda" else 0.0


def _empty(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 4], metavar="REQUESTS")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of the stage")
    return parser.parse_args()


if __name__ == "__main__":
    main()
