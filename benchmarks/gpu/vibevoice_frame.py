"""Where a frame's time goes in VibeVoice: its parts by themselves as CUDA graphs, plain and compiled.

    PYTHONPATH=. python benchmarks/gpu/vibevoice_frame.py FOLDER -o DIR [--batches 1 8 32] [--compile PART]...

FOLDER is a checkpoint, as `vibevoice.py --folder` writes it. Parts: `branch`, a step of one branch through the
backbone's layers, of which a frame has two; `denoise`, all steps of the diffusion's head; `decode`, the acoustic
decoder; `encode`, the semantic encoder; `speak`, all but the branches. For each and each number of requests: median
milliseconds of a replay, the number of its kernels, and the kernels that take most of it. `--tiny` runs the small model
on any device and is meaningless for speed; without CUDA, parts are called.
"""

from __future__ import annotations

import argparse
import collections
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from omni_cli.core.compat.libraries import prepare_libraries  # isort: skip

prepare_libraries()

import torch
from torch.profiler import ProfilerActivity, profile

from omni_cli.backends.execution.cuda_graphs import CudaGraphBackend
from omni_cli.checkpoints.files import read_family, read_model_kind
from omni_cli.checkpoints.resolve import resolve_model
from omni_cli.config.loader import load_profile
from omni_cli.models.vibevoice.stage import SpeakerStage
from omni_cli.stage.protocol import StageSpec

REPEATS, SHOWN, WIDTH = 30, 6, 2


def main() -> int:
    options = _options()
    options.output_dir.mkdir(parents=True, exist_ok=True)
    largest = max(options.batches)
    settings = [
        f"speaker.max_num_seqs={largest}",
        *([] if options.tiny else ["speaker.max_model_len=8192", "speaker.kv_cache_memory_bytes=2147483648"]),
    ]
    folder = resolve_model(options.folder)
    (stage,) = load_profile("tiny-vibevoice", settings).stages
    dtype = "float32" if options.tiny else "bfloat16"
    spec = StageSpec(
        stage, folder, read_family(folder), read_model_kind(folder), dtype=dtype, seed=0, trust_remote_code=False
    )
    loaded = SpeakerStage(spec, lambda report: None)
    lines: list[str] = []
    try:
        with torch.inference_mode():
            for batch in options.batches:
                for name, part in parts(loaded.model, batch).items():
                    ways = {"plain": part}
                    if name in options.compile and batch == options.batches[0]:
                        ways["compiled"] = torch.compile(part, dynamic=False)
                    for way, run in ways.items():
                        began_s = time.perf_counter()
                        line = f"{batch:3} requests  {name:8} {way:9} {measured(run)}"
                        lines.append(line)
                        sys.stdout.write(f"{line}  [{time.perf_counter() - began_s:.0f} s]\n")
                        sys.stdout.flush()
    finally:
        loaded.close()
        (options.output_dir / "vibevoice-frame.txt").write_text("\n".join(lines) + "\n")
    return 0


def parts(model: Any, batch: int) -> dict[str, Callable[[], object]]:
    """Return calls of each part, with inputs on the device; rows use slots and blocks that no request has."""
    weight, speech = model.lm_head.weight, model.speech
    latent_size = model.config.audio_config.hidden_size

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=weight.device).to(weight)

    states = [drawn(batch, weight.shape[1]) for _ in range(2)]
    noise, rows = drawn(batch, latent_size), drawn(batch, weight.shape[1])
    slots = torch.full((batch,), model.num_slots, device=weight.device)
    positions = torch.zeros(batch, dtype=torch.long, device=weight.device)
    tables = torch.zeros((batch, WIDTH), dtype=torch.long, device=weight.device)
    sound = drawn(batch, 1, model.samples_per_frame)
    latents = drawn(batch, latent_size, 1)
    return {
        "branch": lambda: model.branches._step(rows, positions, tables),
        "denoise": lambda: model._denoise(torch.cat(states), noise),
        "decode": lambda: speech.audio_tower.decoder(latents, padding_cache=model._acoustic.use(slots)).audio,
        "encode": lambda: speech.semantic_tokenizer_encoder(sound, padding_cache=model._semantic.use(slots)).latents,
        "speak": lambda: model._speak(slots, *states, noise),
    }


def measured(run: Callable[[], object]) -> str:
    """Return the time of a replay of `run`, its kernels, and the largest of them."""
    if not torch.cuda.is_available():
        began_s = time.perf_counter()
        run()
        return f"{1e3 * (time.perf_counter() - began_s):.3f} ms, called once"
    backend = CudaGraphBackend(torch.device("cuda", torch.cuda.current_device()))
    for _ in range(3):
        backend.warm_up(run)
    graph, _ = backend.capture(run)
    times = []
    for _ in range(REPEATS):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        graph.replay()
        ended.record()
        ended.synchronize()
        times.append(began.elapsed_time(ended))
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        graph.replay()
        torch.cuda.synchronize()
    kernels: collections.Counter[str] = collections.Counter()
    counts: collections.Counter[str] = collections.Counter()
    for event in recorded.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            kernels[event.name[:60]] += event.device_time_total
            counts[event.name[:60]] += 1
    graph.release()
    top = "; ".join(f"{name} {counts[name]} x, {us / 1e3:.2f} ms" for name, us in kernels.most_common(SHOWN))
    busy = sum(kernels.values()) / 1e3
    return f"{statistics.median(times):.3f} ms, {sum(counts.values())} kernels of {busy:.2f} ms: {top}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", metavar="FOLDER")
    parser.add_argument("-o", "--output-dir", type=Path, required=True)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--compile", action="append", default=[], metavar="PART", help="compile it as well, repeatable")
    parser.add_argument("--tiny", action="store_true", help="in float32, to try the script on a small checkpoint")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
