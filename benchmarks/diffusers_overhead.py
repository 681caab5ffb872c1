"""Time that DiffusersPipelineExecutor adds to the plain pipeline call.

    python benchmarks/diffusers_overhead.py [--pairs 30] [--clock wall|cpu] [--num-threads N] [--json]

Both sides make the same image or video, and the bytes are compared. They run in pairs, in alternating order, in one
process on two pipelines with the same components, because where weights lie in memory changes a pipeline's time by some
percent; so the executor's two hooks on the denoiser, some µs a step, run on both sides. Freed memory is kept, as in a
stage. The executor's prompt cache is off, so both encode every prompt. The result is the ratio within pairs with its
interval of 95 %, as `omni bench` compares.

The goal is at most 1 % for a call of 0.3 s or more; a call of `tiny-image` as its profile has it is printed to show the
overhead in absolute terms. Of a video, the plain side ends with the floats that its call returns, the executor's with
all frames as bytes.

On a busy machine wall time is meaningless: `--clock cpu --num-threads 1` measures the processor time of this process
instead, which is the same on an idle CPU.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from common import Ratio, machine_line, ratio_of_pairs

from omni_cli.backends.diffusers.executor import DiffusersPipelineExecutor
from omni_cli.backends.diffusers.loading import load_pipeline
from omni_cli.backends.diffusers.requests import DiffusionRequest
from omni_cli.config.schema import DiffusionStageConfig
from omni_cli.engine.process.preload import keep_freed_memory

PROMPT = "a red cat on a mat"
GOAL = 1.01

Clock = Callable[[], float]
Side = Callable[[int], np.ndarray]
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}


@dataclass(frozen=True)
class Workload:
    """A call of the built-in checkpoint `model`; `num_frames` of a video."""

    name: str
    size: int
    num_inference_steps: int
    model: str = "tiny-image"
    num_frames: int | None = None

    @property
    def call(self) -> dict[str, int]:
        return {} if self.num_frames is None else {"num_frames": self.num_frames}


# Many steps of a small image: where an overhead per step weighs most. Larger images are dominated by page faults of the
# allocator, which differ by more from call to call than the effect in question.
WORKLOADS = (
    Workload("64x64, 4 steps", 64, 4),
    Workload("64x64, 160 steps", 64, 160),
    Workload("17 frames, 20 steps", 64, 20, "tiny-video", 17),
)


@dataclass(frozen=True)
class Result:
    workload: str
    pairs: int
    plain_s: float
    executor_s: float
    ratio: Ratio
    identical: bool


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--workload", choices=[each.name for each in WORKLOADS], help="default: all")
    parser.add_argument("--clock", choices=sorted(CLOCKS), default="wall")
    parser.add_argument("--num-threads", type=int, help="torch's threads; default: torch's own")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.num_threads is not None:
        import torch

        torch.set_num_threads(arguments.num_threads)
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder:
        _build(Path(folder))
        results = [
            _measure(workload, f"{folder}/{workload.model}", arguments.pairs, CLOCKS[arguments.clock])
            for workload in WORKLOADS
            if arguments.workload in (None, workload.name)
        ]
    if arguments.json:
        sys.stdout.write(json.dumps([asdict(result) for result in results]) + "\n")
        return 0
    for result in results:
        ratio = result.ratio
        sys.stdout.write(
            f"{result.workload:20} plain {result.plain_s * 1e3:8.2f} ms   executor {result.executor_s * 1e3:8.2f} ms   "
            f"ratio {ratio.value:.4f} [{ratio.low:.4f}, {ratio.high:.4f}]   {result.pairs} pairs   "
            f"outputs {'identical' if result.identical else 'DIFFER'}\n"
        )
    sys.stdout.write(f"goal: at most {GOAL} where the plain call takes 0.3 s or more\n{machine_line()}\n")
    return 0


def _build(folder: Path) -> None:
    from omni_cli.core.compat.libraries import prepare_libraries

    prepare_libraries()
    from diffusers.utils import logging

    from omni_cli.checkpoints.tiny_pipelines import tiny_image, tiny_video

    # The plain call warns each time about a default of Qwen-Image's that has no effect here.
    logging.set_verbosity_error()

    tiny_image(folder / "tiny-image", 0)
    tiny_video(folder / "tiny-video", 0)


def _measure(workload: Workload, model: str, pairs: int, clock: Clock) -> Result:
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    size, steps = workload.size, workload.num_inference_steps
    stage = DiffusionStageConfig.create("image", num_inference_steps=steps, height=size, width=size, call=workload.call)
    pipeline = load_pipeline(model, "float32", stage).to(device)
    executor = DiffusersPipelineExecutor(
        stage, model, "float32", device, make_pipeline=lambda: copy.copy(pipeline), prompt_cache_bytes=0
    )

    def plain(seed: int) -> np.ndarray:
        call = {"num_inference_steps": steps, "height": size, "width": size, **workload.call}
        made = pipeline(prompt=PROMPT, generator=torch.Generator("cpu").manual_seed(seed), **call)
        return made.frames[0] if workload.num_frames else np.asarray(made.images[0])

    def through_executor(seed: int) -> np.ndarray:
        # Everything a request costs: checking it, a batch of one, progress, times, the copy to the host.
        request = executor.resolve(DiffusionRequest("0", PROMPT, seed=seed))
        (output,) = executor.execute_model((request,), on_step=lambda *_: None)
        if output.error is not None:
            raise output.error
        return output.videos[0].numpy() if output.videos else output.images[0]

    identical = all(np.array_equal(_bytes(plain(seed)), through_executor(seed)) for seed in range(3))
    seconds = np.array([_pair(plain, through_executor, pair, clock) for pair in range(pairs)])
    executor.shutdown()
    return Result(
        workload.name,
        pairs,
        float(np.median(seconds[:, 0])),
        float(np.median(seconds[:, 1])),
        ratio_of_pairs(seconds[:, 1].tolist(), seconds[:, 0].tolist()),
        identical,
    )


def _bytes(made: np.ndarray) -> np.ndarray:
    return made if made.dtype == np.uint8 else (made * 255).round().astype(np.uint8)


def _pair(plain: Side, through_executor: Side, pair: int, clock: Clock) -> tuple[float, float]:
    """Seconds of one call of each; the order alternates from pair to pair."""
    taken = {}
    for side in (plain, through_executor) if pair % 2 == 0 else (through_executor, plain):
        start = clock()
        side(pair)
        taken[side] = clock() - start
    return taken[plain], taken[through_executor]


if __name__ == "__main__":
    sys.exit(main())
