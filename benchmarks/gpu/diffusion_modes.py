"""Execution modes and output copies of diffusion stages on a GPU, at the real sizes of released models.

    PYTHONPATH=. python benchmarks/gpu/diffusion_modes.py -o DIR [--kinds] [--only NAME ...] [--time-budget 420]

Needs Python, torch, transformers and diffusers (and what omni-cli itself needs: msgspec, numpy, PyYAML, pydantic), no
vLLM, no network and no checkpoint. Weights are random and made on the device; Qwen-Image takes 60 GB of its memory.
`--kinds` measures other models: videos (with sound), images, an edited image and music (`kinds.py`).
`--accelerations` adds sides with a profile's accelerations, and takes more steps.

For each model four sides are interleaved in one process, A B C D D C B A in each block, over the same weights: the
plain library call (diffusers' pipeline, transformers' token2wav) and the project's own code
(`DiffusersPipelineExecutor`, `make_execution_mode`) as eager, compile and cudagraph. Then device-to-host copies of
images: a bare `copy_` into pinned memory, `output_copy: sync` and `async`, alone and during the denoiser's work.

DIR gets one `omni.bench/1` record per model, `copies.json`, and `summary.txt` with the goals, each met or NOT MET.
`--tiny --device cpu` runs the same code on small models in a minute and is meaningless for speed.
"""

from __future__ import annotations

import argparse
import gc
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from omni_cli.core.compat.torchvision import ensure_torchvision_importable

ensure_torchvision_importable()

import goals
import msgspec
import torch
from copies import STEPS, Copies, images_on, measure_copies
from environment import kit_command, kit_environment
from kinds import kinds
from measure import (
    OUTPUT_SEEDS,
    Busy,
    Measured,
    busy_of,
    compare_outputs,
    counted,
    flops_of,
    interleave,
    matmul_rate,
    note_repeats,
    start,
)
from models import Model, PipelineModel, Token2WavModel, longer, models
from sides import (
    ACCELERATIONS,
    EXECUTIONS,
    FLOAT8,
    PLAIN,
    ExecutorPipeline,
    PlainPipeline,
    Side,
    Token2Wav,
    name_of,
    settings_of,
)

from omni_cli.records.record import COUNTERS_KEY, Record, StoppingPlan, Variant, workload_fingerprint
from omni_cli.records.record_file import save_record
from omni_cli.stats.blocks import summarise

MIN_BLOCKS = 8
BATCH_SIZE = 4
LAUNCH_BOUND = ("sana-0.6b", "sana-1.6b")


def main() -> int:
    options = _options()
    started = time.perf_counter()
    device = torch.device(options.device)
    named = (kinds if options.kinds else models)(tiny=options.tiny)
    if options.accelerations:
        named = {**models(tiny=options.tiny), **kinds(tiny=options.tiny)}
        named = {name: longer(model) for name, model in named.items() if isinstance(model, PipelineModel)}
    unknown = sorted({*options.only} - named.keys())
    if unknown:
        raise SystemExit(f"no model {', '.join(unknown)}; there are {', '.join(named)}")
    chosen = [model for name, model in named.items() if not options.only or name in options.only]
    options.output_dir.mkdir(parents=True, exist_ok=True)
    lines, found = [_machine_line(device)], []
    for number, model in enumerate(chosen):
        # The rest in equal parts, so that a fast model leaves more to the others.
        left = options.time_budget - (time.perf_counter() - started)
        until = time.perf_counter() + left / (len(chosen) - number)
        text, reached = measure(
            model, device, options, until, with_copies=number == 0 and not (options.kinds or options.accelerations)
        )
        lines += text
        found += reached
        _empty(device)
        _say("\n".join(text))
        summary = "\n".join([*lines, "", goals.table(found), f"took {time.perf_counter() - started:.0f} s"]) + "\n"
        (options.output_dir / "summary.txt").write_text(summary)
    sys.stdout.write(summary)
    return 0


def measure(
    model: Model, device: torch.device, options: argparse.Namespace, until: float, *, with_copies: bool
) -> tuple[list[str], list[goals.Goal]]:
    """Measure one model; return lines for people and the goals."""
    begin = time.perf_counter()
    base = model.make(device)
    made_s = time.perf_counter() - begin
    seeds = OUTPUT_SEEDS[:1] if options.accelerations else OUTPUT_SEEDS
    sides: list[Measured] = []

    def save() -> Record:
        record = record_of(model.name, workload_of(model), [variant_of(measured) for measured in sides], device)
        save_record(record, options.output_dir / f"{model.name}.json")
        return record

    def begin_side(name: str, make: Callable[[], Side]) -> None:
        """Start a side; the record has it from then on."""
        sides.append(start(name, make, device, seeds))
        compare_outputs(sides[-1], sides[0].outputs)
        sides[-1].notes |= counts
        _say(f"{model.name}: {name}: {sides[-1].error or f'first call {sides[-1].first_call_s:.1f} s'}")
        save()

    counts: dict[str, float] = {}
    begin_side(PLAIN, lambda: _plain(model, base, options.device))
    if sides[0].error is not None:
        raise SystemExit(f"{model.name} does not run at all: {sides[0].error}")
    if isinstance(model, Token2WavModel):
        note_repeats(sides[0])
    else:
        counts = _roofline(sides[0], device)
        sides[0].notes |= counts
    wanted = (*EXECUTIONS, *(ACCELERATIONS if options.accelerations else ()))
    for keys in (keys for keys in wanted if name_of(keys) not in options.without):
        begin_side(name_of(keys), lambda keys=keys: _ours(model, base, options.device, keys))
    measured_blocks = partial(
        interleave, run=lambda side, seed: side.run(seed), work=_work(model), blocks=options.blocks or model.blocks,
        until=until, after_block=save, once=options.once,
    )  # fmt: skip
    try:
        measured_blocks(sides)
        if options.accelerations:
            begin_side(name_of(FLOAT8), lambda: _ours(model, base, options.device, FLOAT8))
            measured_blocks([sides[0], sides[-1]], first_block=sides[0].samples[-1].block + 1)
        by_name = {measured.name: measured for measured in sides}
        lines, reached = [], []
        if with_copies:
            lines, reached = _measure_copies(model, base, by_name, device, options)
        # Last, because a profiler that has run would affect timings.
        for measured in sides if not options.accelerations else ():
            measured.busy = _busy(measured, device) if time.perf_counter() < until else None
        record = save()
        return [*_lines(model, made_s, by_name, record), *lines], [*_goals(model, by_name, record), *reached]
    finally:
        for measured in sides:
            if measured.side is not None:
                measured.side.close()
                measured.side = None


def _measure_copies(
    model: PipelineModel, base: Any, sides: dict[str, Measured], device: torch.device, options: argparse.Namespace
) -> tuple[list[str], list[goals.Goal]]:
    """Copies of images alone and during the denoiser's work, and a batch of requests in both modes."""
    copies = measure_copies(images_on(device, tiny=options.tiny), _step(sides), options.copy_blocks)
    _save_copies(copies, device, options.output_dir / "copies.json")
    mode = "eager" if sides["execution=cudagraph"].error else "cudagraph"
    batch = [
        start(
            f"output_copy={copy}",
            lambda copy=copy: ExecutorPipeline(
                model, base, options.device, {"execution": mode, "output_copy": copy}, batch_size=BATCH_SIZE
            ),
            device,
        )
        for copy in ("sync", "async")
    ]
    try:
        work = {name: value * BATCH_SIZE for name, value in _work(model).items()}
        until = time.perf_counter() + 60
        interleave(batch, lambda side, seed: side.run(seed), work, blocks=MIN_BLOCKS, until=until)
        record = record_of("batch", {**workload_of(model), "batch_size": BATCH_SIZE}, map(variant_of, batch), device)
        save_record(record, options.output_dir / "batch.json")
    finally:
        for measured in batch:
            if measured.side is not None:
                measured.side.close()
    return _batch_lines(model, mode, record), goals.of_copies(copies)


def _batch_lines(model: Model, mode: str, record: Record) -> list[str]:
    lines = [f"  batch of {BATCH_SIZE} through the executor, execution={mode}"]
    for variant in record.variants:
        if variant.error is not None:
            lines.append(f"    {variant.name:18} did not run: {variant.error}")
            continue
        counters = variant.effective[COUNTERS_KEY]
        lines.append(
            f"    {variant.name:18} e2e_s {variant.summary['e2e_s'].median * 1e3:9.3f} ms   "
            f"of {counters['copy_s'] * 1e3:.3f} ms of copying hidden {counters['copy_hidden_s'] * 1e3:.3f} ms"
        )
    comparison = goals.compared(record, "output_copy=sync", "output_copy=async")
    if comparison is not None and comparison.ratio is not None:
        lines.append(f"    async to sync {comparison.ratio:.4f} ({comparison.verdict})")
    return lines


def _plain(model: Model, base: Any, device: str) -> Side:
    return PlainPipeline(model, base) if isinstance(model, PipelineModel) else Token2Wav(model, base, device, None)


def _ours(model: Model, base: Any, device: str, keys: Mapping[str, Any]) -> Side:
    if isinstance(model, PipelineModel):
        return ExecutorPipeline(model, base, device, keys)
    return Token2Wav(model, base, device, keys["execution"])


def _roofline(plain: Measured, device: torch.device) -> dict[str, float]:
    """Count the operations of the denoiser's loop, and measure the rate of a large matrix product: the roofline."""
    try:
        counted = {"denoise_loop_flops": float(flops_of(plain.side))}
    except Exception as error:  # noqa: BLE001 - torch's counter must not cost the measurement
        _say(f"no roofline: {type(error).__name__}: {error}")
        return {}
    return {**counted, "matmul_flops_per_s": matmul_rate(device)} if device.type == "cuda" else counted


def _roofline_share(measured: Measured) -> float | None:
    """The rate at which the denoiser's loop does its operations, as a share of a large matrix product's."""
    seconds = [sample.metrics["denoise_loop_s"] for sample in measured.samples if "denoise_loop_s" in sample.metrics]
    rate = measured.notes.get("matmul_flops_per_s")
    return measured.notes["denoise_loop_flops"] / statistics.median(seconds) / rate if seconds and rate else None


def _busy(measured: Measured, device: torch.device) -> Busy | None:
    if measured.side is None:
        return None
    try:
        return busy_of(measured.side.denoise, device)
    except RuntimeError as error:
        _say(f"no busy time: the profiler does not run here: {error}")
        return None


def _step(sides: dict[str, Measured]):
    """One call of a denoiser with its pipeline's arguments: by its CUDA graph, else eagerly."""
    graph, eager = sides["execution=cudagraph"], sides["execution=eager"]
    side = (graph if graph.side is not None else eager).side
    seen: list[tuple[Any, Any]] = []
    handle = side.denoiser.register_forward_pre_hook(
        lambda _module, args, kwargs: seen.append((args, kwargs)), with_kwargs=True
    )
    side.run(0)
    handle.remove()
    args, kwargs = seen[-1]

    def step() -> object:
        with torch.no_grad():
            return side.denoiser(*args, **kwargs)

    return step


def _work(model: Model) -> dict[str, float]:
    if isinstance(model, PipelineModel):
        if model.makes == "sound":
            size = {"audio_s": float(model.call["audio_end_in_s"])}
        else:
            size = {"pixels": float(math.prod(model.shape.values()))}
        return {"denoise_steps": float(model.num_inference_steps), **size}
    return {"denoise_steps": float(model.num_inference_steps - 1), "audio_s": model.num_codes / 50}


def workload_of(model: Model) -> dict[str, Any]:
    described = {name: value for name, value in asdict(replace(model, make=None)).items() if name != "make"}
    return {**described, "fingerprint": workload_fingerprint(described)}


def variant_of(measured: Measured) -> Variant:
    effective: dict[str, Any] = {"first_call_s": measured.first_call_s, **measured.notes}
    if measured.side is not None:
        effective |= {COUNTERS_KEY: measured.side.counters(), **measured.side.effective()}
    if measured.busy is not None:
        effective["gpu_busy"] = asdict(measured.busy)
    if (share := _roofline_share(measured)) is not None:
        effective["roofline_share"] = share
    if measured.denoiser_max_abs_diff is not None:
        effective["denoiser_max_abs_diff"] = measured.denoiser_max_abs_diff
    variant = Variant(
        name=measured.name, settings=settings_of(measured.name), effective=effective, samples=tuple(measured.samples),
        memory=measured.memory, output_sha256=measured.output_sha256, error=measured.error,
    )  # fmt: skip
    return _with_summary(variant)


def _with_summary(variant: Variant) -> Variant:
    found = {metric: summarise(variant, metric) for metric in ("e2e_s", "denoise_loop_s", "denoise_step_s")}
    return msgspec.structs.replace(variant, summary={name: item for name, item in found.items() if item})


def record_of(name: str, workload: dict[str, Any], variants: Sequence[Variant], device: torch.device) -> Record:
    return Record(
        created=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        command=kit_command(),
        environment=kit_environment(device=str(device), kit=name),
        workload=workload,
        variants=tuple(variants),
        sampling=StoppingPlan(),
    )


def _save_copies(copies: Copies, device: torch.device, path: Path) -> None:
    variants = {f"{kind}: {variant.name}": variant for kind, group in
                (("alone", copies.bandwidth), ("beside work", copies.hiding)) for variant in group}  # fmt: skip
    named = [_with_summary(msgspec.structs.replace(variant, name=name)) for name, variant in variants.items()]
    record = record_of("copies", {"name": "copies", "steps": STEPS}, named, device)
    record.environment["conditions"]["hidden_share"] = copies.hidden
    save_record(record, path)


def _goals(model: Model, sides: dict[str, Measured], record: Record) -> list[goals.Goal]:
    found = []
    graph, eager, plain = "execution=cudagraph", "execution=eager", PLAIN
    if eager not in sides:
        return found
    if graph in sides:
        found.append(goals.identical(model.name, sides))
        if model.name in LAUNCH_BOUND:
            found.append(goals.near_busy(model.name, record.variant(graph), sides[plain].busy))
        else:
            wanted = f"cudagraph never more than {goals.SLOWER_MARGIN:.0%} slower than eager"
            found.append(goals.not_slower(model.name, record, eager, graph, goals.SLOWER_MARGIN, wanted))
    wanted = f"eager at most {goals.OVERHEAD_MARGIN:.0%} over the plain call"
    found.append(goals.not_slower(model.name, record, plain, eager, goals.OVERHEAD_MARGIN, wanted))
    return found


def _lines(model: Model, made_s: float, sides: dict[str, Measured], record: Record) -> list[str]:
    lines = [f"\n{model.name}: {model.describes}, {model.dtype}, made in {made_s:.1f} s"]
    for name, measured in sides.items():
        if measured.error is not None:
            lines.append(f"  {name:20} did not run: {measured.error}")
            continue
        variant = record.variant(name)
        medians = {metric: item.median for metric, item in variant.summary.items()}
        text = [f"  {name:20}", *(f"{metric} {value * 1e3:9.3f} ms" for metric, value in medians.items())]
        comparison = goals.compared(record, PLAIN, name)
        if name != PLAIN and comparison is not None and comparison.ratio is not None:
            text.append(f"ratio to plain {comparison.ratio:.4f} ({comparison.verdict})")
        repeats = [f"{key} {value:g}" for key, value in measured.notes.items() if key.startswith("waveform")]
        text += [*repeats, f"first call {measured.first_call_s:.1f} s", f"difference {_differences(measured)}"]
        text += [f"{key} {value:.4g}" for key, value in measured.notes.items() if key in ("psnr_db", "ssim")]
        text += counted(measured)
        if measured.memory.peak_allocated_bytes:
            text.append(f"peak {measured.memory.peak_allocated_bytes / 2**30:.2f} GiB")
            text.append(f"reserved {measured.memory.peak_reserved_bytes / 2**30:.2f} GiB")
        if (share := _roofline_share(measured)) is not None:
            text.append(f"{share:.3f} of {measured.notes['matmul_flops_per_s'] / 1e12:.0f} TFLOP/s")
        if measured.busy is not None:
            busy = measured.busy
            text.append(f"GPU busy {busy.busy_s * 1e3:.2f} ms of {busy.wall_s * 1e3:.2f}, {busy.kernels} kernels")
        lines.append("   ".join(text))
    return lines


def _differences(measured: Measured) -> str:
    """Differences of the output and of the denoiser's last answer, with the standard deviation of the expected one."""
    notes = measured.notes
    return (
        f"{measured.max_abs_diff:g} (std {notes['output_std']:.3g}), "
        f"of the denoiser {measured.denoiser_max_abs_diff:g} (std {notes['denoiser_output_std']:.3g}), "
        f"relative {notes['relative_difference']:.2g} and {notes['denoiser_relative_difference']:.2g}"
    )


def _machine_line(device: torch.device) -> str:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return f"{name}, torch {torch.__version__}"


def _empty(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    torch.compiler.reset()


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output-dir", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small models, to try the script")
    parser.add_argument("--only", action="append", default=[], help="a model, repeatable; default: all")
    parser.add_argument("--kinds", action="store_true", help="the models of `kinds.py`")
    parser.add_argument("--accelerations", action="store_true", help="images and videos of both, with more sides")
    parser.add_argument("--without", action="append", default=[], help="a side to leave out, repeatable")
    parser.add_argument(
        "--once", action="store_true", help="each side once in a block, so that blocks take half as long"
    )
    parser.add_argument("--blocks", type=int, help=f"per model; a verdict needs {MIN_BLOCKS}; default: 8 or 16")
    parser.add_argument("--copy-blocks", type=int, default=12)
    parser.add_argument("--time-budget", type=float, default=420.0, help="seconds; blocks are left out after that")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
