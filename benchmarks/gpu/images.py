"""Images and a video as a user gets them, with the execution that the stage chooses, interleaved with plain diffusers.

    PYTHONPATH=. python benchmarks/gpu/images.py -o FILE.json [--only big] [--at-once 1 4] [--set KEY=VALUE]
        [--vllm-omni PYTHONPATH]

*big* is Qwen-Image as released, 60 blocks, 20.4 B parameters, at 1024 x 1024; *small* has 16 blocks of half the width,
1.4 B, at 512 x 512: 20 steps, guidance 4, so two forwards per step, and each round has prompts of lengths that no round
had before. The others are those of `kinds`. Weights are random bfloat16, the same on all sides; sides are resident, and
their order alternates. On a GPU, joules per image are those of the device while a side runs. `--vllm-omni` adds
vllm-omni as a process with that PYTHONPATH. Needs what `diffusion_modes.py` needs. `--tiny --device cpu` runs the same
code in a minute and is meaningless for speed.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import gc
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from omni_cli.core.compat.torchvision import ensure_torchvision_importable

ensure_torchvision_importable()

import models
import numpy as np
import torch
from kinds import kinds
from models import PipelineModel
from random_weights import fill
from sides import call_pipeline, made_by, on_host, stage_of
from sound_energy import RoundMeter
from vllm_omni_side import VllmOmni

from omni_cli.backends.diffusers.executor import DiffusersPipelineExecutor
from omni_cli.backends.diffusers.requests import DiffusionOutput, DiffusionRequest
from omni_cli.core.energy import EnergyReading

SIZES = {"big": (60, 24, 1024), "small": (16, 12, 512)}  # blocks, attention heads, pixels each way
OTHERS = ("flux.2-klein", "z-image", "qwen-image-edit", "wan2.2-t2v-a14b")
# With a gain of 1, guidance and 20 steps make large differences of what rounding makes.
GAIN = 0.577
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
        shown = ("medians_s", "ratios", "joules_per_image", "largest_difference", "least_psnr_db", "reserved_gib")
        _say(json.dumps({key: found[model][key] for key in shown}))
        gc.collect()
        _empty(device)


def measure(name: str, device: torch.device, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the results after each round."""
    varied = name in SIZES
    model = _qwen_image(name, tiny=options.tiny) if varied else kinds(tiny=options.tiny)[name]
    pipeline = model.make(device)
    if varied:
        _vary_lengths(pipeline)
    plain = Plain(model, pipeline)
    plain_memory = _memory_of(lambda: plain.run([_prompt(9)]), device)
    begin = time.perf_counter()
    keys = dict(option.split("=", 1) for option in options.set)
    ours = Omni(model, models.twin_pipeline(pipeline), device, keys)
    loading = _reserved(device)
    ready_s = {"omni": time.perf_counter() - begin}
    memory = _memory_of(lambda: ours.run([_prompt(9)]), device)
    effective = ours.executor.effective
    chosen = (effective["execution"], effective.get("attention_backend"), effective.get("execution_reason"))
    _say(f"{name}: ready in {ready_s['omni']:.1f} s, {chosen}")
    sides: dict[str, Side] = {"plain": plain, "omni": ours}
    peer = None
    if options.vllm_omni is not None:
        begin = time.perf_counter()
        batch_size = max(options.at_once) if varied else 1
        peer = VllmOmni(
            model,
            pipeline,
            options.vllm_omni,
            device=device.type,
            batch_size=batch_size,
            gain=GAIN if varied else 1.0,
            num_tokens_vary=varied,
        )
        ready_s["vllm-omni"] = time.perf_counter() - begin
        sides["vllm-omni"] = peer
        peer.run([_prompt(9)])
    peer_memory = {"vllm-omni": peer.memory()} if peer is not None else {}
    sizes = options.at_once if varied else [1]
    for at_once in sizes:  # what compiles for a number of requests does so here
        for side in sides.values():
            side.run([_prompt(9)] * at_once)

    lengths = iter(range(10, 1000))
    times: dict[str, list[float]] = collections.defaultdict(list)
    joules: dict[str, list[float]] = collections.defaultdict(list)
    meter = RoundMeter()
    differences: dict[str, list[tuple[int, float]]] = collections.defaultdict(list)
    for number in range(options.rounds):
        for at_once in sizes:
            # Several requests of one length, which plain diffusers can take as one batch.
            prompts = [_prompt(next(lengths))] * at_once
            made = {}
            for side_name in [*sides] if number % 2 else [*sides][::-1]:
                asyncio.run(meter.begin())
                seconds, completions, made[side_name] = sides[side_name].run(prompts)
                joules[f"{side_name} {at_once}"] += _joules_per_image(asyncio.run(meter.end()), at_once)
                times[f"{side_name} {at_once}"].append(seconds)
                times[f"{side_name} {at_once} mean completion"].append(statistics.mean(completions))
            if at_once == 1:  # in plain's batch of four, products round differently
                for side_name in [*sides][1:]:
                    differences[side_name].append(_difference(made[side_name], made["plain"]))
        if varied:
            # The second time with this length.
            times["omni 1 again"].append(ours.run(prompts[:1])[0])
        yield {
            "ready_s": ready_s,
            "effective": {key: str(value) for key, value in effective.items()},
            "medians_s": {key: round(statistics.median(values), 4) for key, values in times.items()},
            "ratios": {
                f"{side_name} / omni, {at_once}": _ratio(times[f"{side_name} {at_once}"], times[f"omni {at_once}"])
                for side_name in sides
                for at_once in sizes
                if side_name != "omni"
            },
            "joules_per_image": {key: round(statistics.median(values), 1) for key, values in joules.items() if values},
            "largest_difference": {side: max(each[0] for each in found) for side, found in differences.items()},
            "least_psnr_db": {side: min(each[1] for each in found) for side, found in differences.items()},
            "reserved_gib": {"loading": loading, "one request": memory, "plain": plain_memory, **peer_memory},
            "counters": ours.executor.execution_counters,
            "times_s": times,
        }
    ours.executor.shutdown()
    if peer is not None:
        peer.close()


def _qwen_image(name: str, *, tiny: bool) -> PipelineModel:
    layers, heads, size = (2, 2, 64) if tiny else SIZES[name]

    def make(device: torch.device) -> Any:
        pipeline = models.make_qwen_image(device, tiny=tiny, sizes={"num_layers": layers, "num_attention_heads": heads})
        for part in ("transformer", "vae"):
            for key, values in getattr(pipeline, part).named_parameters():
                fill(f"{part}.{key}", values.data, GAIN)
        return pipeline

    return PipelineModel(
        name, f"Qwen-Image, {layers} blocks, guided", make, size, 20, 1,
        call={"true_cfg_scale": 4.0, "negative_prompt": " "},
    )  # fmt: skip


def _ratio(theirs: Sequence[float], own: Sequence[float]) -> float:
    return round(statistics.median(a / b for a, b in zip(theirs, own, strict=True)), 4)


class Side(Protocol):
    def run(self, prompts: Sequence[str]) -> tuple[float, list[float], np.ndarray]:
        """Return the seconds until all outputs were on the host, those of each, and the first output."""


class Plain:
    """diffusers' pipeline: several prompts as one batch."""

    def __init__(self, model: PipelineModel, pipeline: Any) -> None:
        self._model, self._pipeline = model, pipeline

    def run(self, prompts: Sequence[str]) -> tuple[float, list[float], np.ndarray]:
        start = time.perf_counter()
        made = call_pipeline(self._model, self._pipeline, prompts, range(len(prompts)), "pt")
        pixels = on_host(self._model, made)
        seconds = time.perf_counter() - start
        return seconds, [seconds] * len(prompts), pixels[0]


class Omni:
    """The executor of a stage with the keys of its profile."""

    def __init__(self, model: PipelineModel, pipeline: Any, device: torch.device, keys: dict[str, Any]) -> None:
        self._given = model.given
        self.executor = DiffusersPipelineExecutor(
            stage_of(model, **keys), model.name, model.dtype, device.type, prompt_cache_bytes=0,
            make_pipeline=lambda: pipeline,
        )  # fmt: skip
        self.executor.compile_or_warm_up_model()

    def run(self, prompts: Sequence[str]) -> tuple[float, list[float], np.ndarray]:
        start = time.perf_counter()
        completions: list[float] = []

        def note(_output: DiffusionOutput) -> None:
            completions.append(time.perf_counter() - start)

        requests = [
            self.executor.resolve(DiffusionRequest(str(seed), prompt, seed=seed, conditions=self._given))
            for seed, prompt in enumerate(prompts)
        ]
        outputs = self.executor.execute_model(tuple(requests), on_output=note)
        made = [made_by(output) for output in outputs]
        seconds = time.perf_counter() - start
        return seconds, completions, np.asarray(made[0])


def _vary_lengths(pipeline: Any) -> None:
    """Make a prompt's number of words the number of its tokens."""

    def encode_prompt(self: Any, prompt: str | list[str], **_: Any) -> tuple[torch.Tensor, None]:
        prompts = [prompt] if isinstance(prompt, str) else prompt
        row = self.random_prompt[:, : max(1, len(prompts[0].split()))]
        return row.expand(len(prompts), -1, -1), None

    type(pipeline).encode_prompt = encode_prompt


def _prompt(num_tokens: int) -> str:
    return " ".join(["word"] * num_tokens)


def _joules_per_image(used: EnergyReading | None, num_images: int) -> list[float]:
    return [] if used is None else [sum(used.joules.values()) / num_images]


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
    parser.add_argument("--only", nargs="+", choices=(*SIZES, *OTHERS), default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 4], metavar="REQUESTS")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--vllm-omni", metavar="PYTHONPATH", help="where vllm-omni and what it needs are")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of the stage")
    return parser.parse_args()


if __name__ == "__main__":
    main()
