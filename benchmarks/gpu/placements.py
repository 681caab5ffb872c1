"""One pipeline on several GPUs (diffusers' context parallelism), with its weights offloaded, or in another precision.

    PYTHONPATH=. python benchmarks/gpu/placements.py -o DIR [--of parallel] [--ranks 2] [--calls 3]

Each side is a process of its own, which starts its other ranks as a stage does (`Ranks`, NCCL or gloo) and runs
the project's executor; weights are random and equal on all. `parallel` is Wan 2.2 (5B) with Ulysses and ring attention,
`offload` FLUX.2 klein with each of diffusers' ways to offload, `precision` klein in each precision. DIR gets a record
per group (`parallel-2.json`, `offload.json`) with times, peak memory of the first GPU and the difference to the first
side's output.
`--tiny --device cpu` tries it without a GPU; there is nothing to offload from then.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

# As in a stage: without it, what asks torch for its devices while it is imported makes ranks unable to use them.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

from omni_cli.core.compat.torchvision import ensure_torchvision_importable

ensure_torchvision_importable()

import numpy as np
import torch
from diffusion_modes import record_of, variant_of, workload_of
from kinds import kinds
from measure import Measured, distance, forget_peaks, peaks, relative
from models import PipelineModel
from sides import PROMPT, stage_of

from omni_cli.backends.diffusers.executor import DiffusersPipelineExecutor
from omni_cli.backends.diffusers.parallel import Rank, Ranks
from omni_cli.backends.diffusers.requests import DiffusionRequest
from omni_cli.config.schema import DiffusionStageConfig
from omni_cli.records.record import Memory, Sample
from omni_cli.records.record_file import save_record
from omni_cli.requests.outputs import GenerateRequest
from omni_cli.stage.messages import AddRequest, Failure
from omni_cli.stage.protocol import StageSpec

LONGEST_S = 240.0
MODELS = {"parallel": "wan2.2-ti2v-5b-short", "offload": "flux.2-klein", "precision": "flux.2-klein"}


def sides_of(group: str, num_ranks: int, device: str) -> dict[str, dict[str, Any]]:
    """The stage's keys of each side; the first one is the reference."""
    if group == "offload":
        modes = {name: {"offload": name} for name in ("none", "model", "sequential", "group")}
        streamed = {"offload": "group", "offload_type": "leaf_level", "use_stream": True}
        return {**modes, "group, leaf level, stream": streamed}
    if group == "precision":
        return {
            name: {"precision": name} for name in ("float32", "tf32", "bfloat16") if (name, device) != ("tf32", "cpu")
        }
    found: dict[str, dict[str, Any]] = {"one device": {}}
    found[f"ulysses {num_ranks}"] = {"context_parallel": {"ulysses_degree": num_ranks}}
    if device != "cpu":  # torch has no attention with sums for a CPU
        exact = {"attention_backend": "_native_cudnn"}
        found[f"ring {num_ranks}, cuDNN"] = {"context_parallel": {"ring_degree": num_ranks}, **exact}
        found["one device, cuDNN"] = exact
    return found


class Stage:
    """A stage of one request at a time, on each of its ranks."""

    def __init__(self, model: PipelineModel, config: DiffusionStageConfig, device: str, rank: Rank | None) -> None:
        self.device = torch.device(device if rank is None or device == "cpu" else f"{device}:{rank.number}")
        self.executor = DiffusersPipelineExecutor(
            config, model.name, model.dtype, str(self.device), prompt_cache_bytes=0, rank=rank,
            make_pipeline=lambda: self._made(model, config),
        )  # fmt: skip
        self.given = model.given
        self.requests: list[GenerateRequest] = []

    def _made(self, model: PipelineModel, config: DiffusionStageConfig) -> Any:
        pipeline = model.make(self.device)
        if config.precision in ("float32", "tf32"):
            pipeline.to(torch.float32)
            answer = pipeline.encode_prompt()
            widened = tuple(each.float() if each.is_floating_point() else each for each in answer)
            type(pipeline).encode_prompt = lambda *_args, **_named: widened
        # As read from files: the keys for offload find the weights on the host.
        return pipeline if config.offload == "none" else pipeline.to("cpu")

    def add(self, request: GenerateRequest) -> None:
        self.requests.append(request)

    def abort(self, request_id: str) -> None:
        """Do nothing: no request is aborted here."""

    def step(self) -> list[Any]:
        """Run the next request; what a rank reports are failures."""
        request = self.requests.pop(0)
        wanted = DiffusionRequest(request.request_id, PROMPT, seed=request.seed, conditions=self.given)
        (self.output,) = self.executor.execute_model((wanted,))
        return [] if self.output.error is None else [Failure.of(self.output.error)]


def follow(name: str, size: int, device: str, spec: StageSpec, _emit: object, rank: Rank) -> Stage:
    """Load the model of another rank; its size tells a tiny one."""
    model = kinds(tiny=False)[name]
    return Stage(model if model.size == size else kinds(tiny=True)[name], spec.stage, device, rank)


def run_side(model: PipelineModel, config: DiffusionStageConfig, device: str, calls: int, out: Path) -> None:
    """Run a side in this process and write what it measured to `out`; other ranks are processes of its own."""
    spec = StageSpec(config, model.name, "diffusers", "", model.dtype, 0, False)
    ranks = None
    if config.num_ranks > 1:
        ranks = Ranks(spec, partial(follow, model.name, model.size, device), _say)
    stage = Stage(model, config, device, None if ranks is None else ranks.rank)
    samples = []
    for number in range(calls + 1):
        if number == 1:
            forget_peaks(stage.device)
        request = GenerateRequest(str(number), prompt=PROMPT, seed=0)
        stage.add(request)
        begin = time.perf_counter()
        if ranks is not None:
            ranks.send(AddRequest(request))
            ranks.start_step()
        failures = stage.step()
        if ranks is not None:
            ranks.finish_step(failed=bool(failures))
        if failures:
            raise RuntimeError(failures[0].message)
        made = stage.output.videos[0].numpy() if stage.output.videos else stage.output.images[0]
        samples.append((time.perf_counter() - begin, float(np.median(stage.output.times.denoise_step_s))))
    memory = peaks(stage.device)
    np.savez(
        out, output=made, effective=str(dict(stage.executor.effective)), samples=samples[1:], first_s=samples[0][0],
        memory=[memory.peak_allocated_bytes or 0, memory.peak_reserved_bytes or 0],
    )  # fmt: skip
    if ranks is not None:
        ranks.close()


def in_child(target: Callable[..., None], *args: object) -> int | None:
    """Call it in a new process, with no memory of the side before. Return the exit code."""
    process = multiprocessing.get_context("spawn").Process(target=target, args=args)
    process.start()
    process.join(LONGEST_S)
    process.kill()
    return process.exitcode


def measured_side(
    group: str, name: str, options: argparse.Namespace, expected: np.ndarray | None
) -> tuple[Measured, np.ndarray | None]:
    """Run a side as a process of its own; the expected output, that of the first side, is returned as well."""
    out = options.output_dir / "side.npz"
    out.unlink(missing_ok=True)
    out.with_suffix(".error").unlink(missing_ok=True)
    measured = Measured(name)
    exit_code = in_child(_reporting, group, name, options, out)
    if exit_code != 0:
        why = out.with_suffix(".error")
        measured.error = why.read_text() if why.exists() else f"exit code {exit_code} in {LONGEST_S:.0f} s"
        return measured, expected
    found = np.load(out)
    output = found["output"]
    expected = output if expected is None else expected
    for number, (e2e_s, step_s) in enumerate(found["samples"]):
        metrics = {"denoise_step_s": float(step_s)}
        measured.samples.append(Sample(block=number, position=0, e2e_s=float(e2e_s), metrics=metrics, work={}))
    measured.first_call_s = float(found["first_s"])
    allocated, reserved = map(int, found["memory"])
    measured.memory = Memory(peak_allocated_bytes=allocated, peak_reserved_bytes=reserved)
    measured.max_abs_diff = distance(output, expected)
    measured.notes |= {
        "max_abs_diff": measured.max_abs_diff,
        "relative_difference": relative(output, expected),
        "output_std": float(np.std(output, dtype=np.float32)),
        "effective": str(found["effective"]),
    }
    return measured, expected


def _reporting(group: str, name: str, options: argparse.Namespace, out: Path) -> None:
    try:
        model = model_of(group, options)
        keys = sides_of(group, options.ranks, options.device)[name]
        config = stage_of(model, devices="cpu" if options.device == "cpu" else None, **keys)
        run_side(model, config, options.device, options.calls, out)
    except BaseException as error:
        traceback.print_exc()
        out.with_suffix(".error").write_text(f"{type(error).__name__}: {error}")
        raise


def main() -> int:
    options = _options()
    options.output_dir.mkdir(parents=True, exist_ok=True)
    for group in options.of or MODELS:
        name = f"parallel-{options.ranks}" if group == "parallel" else group
        sides: list[Measured] = []
        expected, text = None, ""
        for side, keys in sides_of(group, options.ranks, options.device).items():
            if side in options.without:
                continue
            measured, expected = measured_side(group, side, options, expected)
            measured.notes["keys"] = {key: str(value) for key, value in keys.items()}
            sides.append(measured)
            _say(_line(name, measured))
            _save(group, name, sides, options)
            text = "\n".join(_line(name, each) for each in sides) + "\n"
            (options.output_dir / f"{name}.txt").write_text(text)
        sys.stdout.write(text)
    return 0


def model_of(group: str, options: argparse.Namespace) -> PipelineModel:
    model = kinds(tiny=options.tiny)[MODELS[group]]
    # Weights cross the bus in each step.
    return replace(model, num_inference_steps=2) if group == "offload" else model


def _save(group: str, name: str, sides: list[Measured], options: argparse.Namespace) -> None:
    variants = [variant_of(each) for each in sides]
    record = record_of(name, workload_of(model_of(group, options)), variants, torch.device(options.device))
    save_record(record, options.output_dir / f"{name}.json")


def _say(text: object) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _line(group: str, measured: Measured) -> str:
    if measured.error is not None:
        return f"{group:12} {measured.name:22} did not run: {measured.error}"
    e2e_s = statistics.median(sample.e2e_s for sample in measured.samples)
    step_s = statistics.median(sample.metrics["denoise_step_s"] for sample in measured.samples)
    return (
        f"{group:12} {measured.name:22} e2e_s {e2e_s * 1e3:9.1f} ms   denoise_step_s {step_s * 1e3:9.1f} ms   "
        f"peak {(measured.memory.peak_allocated_bytes or 0) / 2**30:.2f} GiB   "
        f"first call {measured.first_call_s:.1f} s   difference {measured.max_abs_diff:g}, "
        f"relative {measured.notes['relative_difference']:.2g} (std {measured.notes['output_std']:.3g})"
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output-dir", type=Path, required=True)
    parser.add_argument("--of", action="append", choices=tuple(MODELS), help="repeatable; default: all")
    parser.add_argument("--without", action="append", default=[], help="a side to leave out, repeatable")
    parser.add_argument("--ranks", type=int, default=2, help="GPUs that share one request")
    parser.add_argument("--calls", type=int, default=3, help="of each side, after one that is not counted")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--tiny", action="store_true", help="small models, to try the script")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
