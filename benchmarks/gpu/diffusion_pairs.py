"""Choices of diffusion stages on one GPU, part by part, each measured as interleaved pairs.

    PYTHONPATH=. python benchmarks/gpu/diffusion_pairs.py PART [PART...] [--tiny]

* `waits`: a graphed step with each scheduler, as it is and without what makes the host wait for the device
  (`WithoutWaits`, and timesteps on the host for DDIM and DDPM, which omni does not have).
* `vae`: decoders of images' VAEs, eager, compiled for all sizes and, the first one, for one size.
* `float8`: Qwen-Image of 20 B with `quantization: float8_dynamic`, against bfloat16. Needs torchao.
* `small`, `small-without-cudnn`: Qwen-Image of 1.4 B in the mode that the stage chooses, with prompts of new and of
  known lengths, and `no_grad` against `inference_mode`; each in a process of its own.
* `klein`: FLUX.2 klein with and without a compiled decoder.
* `attention`: attention's kernels, and what their first call at a new length costs.
* `rates`: the rates that `omni profile` measures.

Weights are random bfloat16; sizes are those of the released models, of `images.py` and of `kinds.py`. Needs what
`diffusion_modes.py` needs. `--tiny` runs the same code with small models on a CPU and is meaningless for speed.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from omni_cli.core.compat.torchvision import ensure_torchvision_importable

ensure_torchvision_importable()

import diffusers
import images
import kinds
import models
import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from omni_cli.backends.diffusers import execution
from omni_cli.backends.diffusers.requests import DiffusionRequest
from omni_cli.backends.diffusers.scheduler_steps import WithoutWaits
from omni_cli.backends.execution.modes import CompiledMode
from omni_cli.engine.recording import tracer
from omni_cli.stats.output_quality import structural_similarity

STEPS = 20
# About 7 ms of products on an H200, as the forward of a small denoiser.
PRODUCTS = 300


class Bench:
    """The device, its clock, and the sizes to take."""

    def __init__(self, *, tiny: bool) -> None:
        self.tiny = tiny
        self.device = torch.device("cpu" if tiny else "cuda")
        self.dtype = torch.float32 if tiny else torch.bfloat16
        self.keys = {"execution": "eager" if tiny else "compile"}

    def wait(self) -> None:
        if not self.tiny:
            torch.cuda.synchronize()

    def once(self, run: Callable[[], Any]) -> tuple[float, Any]:
        """Return the seconds of a call, until the device has done it, and its output."""
        self.wait()
        began_s = time.perf_counter()
        made = run()
        self.wait()
        return time.perf_counter() - began_s, made

    def clock(self, run: Callable[[], Any], number: int = 5) -> float:
        """Return the milliseconds of each of several calls in a row."""
        number = 1 if self.tiny else number
        return self.once(lambda: [run() for _ in range(number)])[0] / number * 1e3

    def pairs(self, a: Callable[[], Any], b: Callable[[], Any], rounds: int, number: int) -> tuple[float, float, str]:
        """Return the medians in milliseconds, and their rounds' ratio b / a in words; each round turns the order."""
        times: tuple[list[float], list[float]] = ([], [])
        for index in range(1 if self.tiny else rounds):
            for which in ((0, 1), (1, 0))[index % 2]:
                times[which].append(self.clock((a, b)[which], number))
        ratios = [late / early for early, late in zip(*times, strict=True)]
        words = f"ratio {statistics.median(ratios):.4f} [{min(ratios):.3f}, {max(ratios):.3f}]"
        return statistics.median(times[0]), statistics.median(times[1]), words

    def omni(self, model: Any, pipeline: Any, keys: dict[str, Any]) -> tuple[float, Any]:
        """Return the seconds until a stage is ready, and the stage; it shares the pipeline's weights."""
        return self.once(lambda: images.Omni(model, models.twin_pipeline(pipeline), self.device, keys))

    def qwen_image(self, name: str) -> tuple[Any, Any]:
        """Return Qwen-Image of a size, and its pipeline, which takes a prompt's words as its tokens."""
        model = images._qwen_image(name, tiny=self.tiny)
        pipeline = model.make(self.device)
        images._vary_lengths(pipeline)
        return model, pipeline


def waits(bench: Bench) -> None:
    step = _graphed_step(bench)
    for name, scheduler in {
        "UniPC (Wan)": diffusers.UniPCMultistepScheduler(
            use_flow_sigmas=True, prediction_type="flow_prediction", flow_shift=3.0
        ),
        "UniPC order 3": diffusers.UniPCMultistepScheduler(solver_order=3),
        "DDIM": diffusers.DDIMScheduler(),
        "DDPM": diffusers.DDPMScheduler(),
        "DPM++": diffusers.DPMSolverMultistepScheduler(),
        "FlowMatchEuler": diffusers.FlowMatchEulerDiscreteScheduler(),
    }.items():
        run = functools.partial(_image, bench, scheduler, step)
        with torch.inference_mode():
            (own, waited), (made, left) = run(False, count=True), run(True, count=True)
            before, after, ratio = bench.pairs(functools.partial(run, False), functools.partial(run, True), 5, 1)
        _say(
            f"{name}: waits per step {waited:.2f} -> {left:.2f}, equal bits {torch.equal(own, made)}; "
            f"step ms {before / STEPS:.2f} -> {after / STEPS:.2f}, {ratio}"
        )


def _graphed_step(bench: Bench) -> Callable[[], Any]:
    if bench.tiny:
        return lambda: None
    work = torch.randn(2048, 2048, device=bench.device, dtype=bench.dtype)
    work @ work
    bench.wait()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(PRODUCTS):
            work @ work
    _say(f"a graphed step without a scheduler: {bench.clock(graph.replay, 30):.2f} ms")
    replay: Callable[[], Any] = graph.replay
    return replay


def _image(bench: Bench, scheduler: Any, step: Any, without: bool, *, count: bool = False) -> tuple[Any, float]:
    """Return the last sample, and the waits per step where they are counted."""
    scheduler.set_timesteps(STEPS, device=bench.device)
    draw = torch.Generator().manual_seed(0)
    sample = torch.randn(1, 16, 64, 64, generator=draw).to(bench.device)
    predicted = torch.randn(1, 16, 64, 64, generator=draw).to(bench.device, bench.dtype)
    ddpm = isinstance(scheduler, diffusers.DDPMScheduler)
    keys = {"generator": torch.Generator().manual_seed(1)} if ddpm else {}
    # Those without an index of the step look their tables up at the timestep.
    on_host = without and not hasattr(scheduler, "step_index")
    number = 0
    for timestep in scheduler.timesteps.cpu() if on_host else scheduler.timesteps:
        step()
        with warnings.catch_warnings(record=True) as seen, WithoutWaits() if without else contextlib.nullcontext():
            warnings.simplefilter("always")
            _note_waits("warn", bench, count)
            sample = scheduler.step(predicted, timestep, sample, return_dict=False, **keys)[0]
            _note_waits("default", bench, count)
        number += sum("called a synchronizing" in str(each.message) for each in seen)
    bench.wait()
    return sample, number / STEPS


def _note_waits(mode: str, bench: Bench, count: bool) -> None:
    if count and not bench.tiny:
        torch.cuda.set_sync_debug_mode(mode)


@torch.inference_mode()
def vae(bench: Bench) -> None:
    sizes = [(4, 4), (4, 6)] if bench.tiny else [(128, 128), (96, 128), (64, 64)]
    for kind in ("kl", "flux2"):
        model = _make_vae(kind, bench)

        def latents(size: tuple[int, int], model: Any = model) -> torch.Tensor:
            draw = torch.Generator(bench.device).manual_seed(size[0] * size[1])
            shape = (1, model.config.latent_channels, *size)
            return torch.randn(shape, device=bench.device, dtype=bench.dtype, generator=draw)

        def decode(z: torch.Tensor, model: Any = model) -> torch.Tensor:
            return model.decode(z, return_dict=False)[0]

        own = {size: decode(latents(size)) for size in sizes}
        eager = {size: bench.clock(functools.partial(decode, latents(size))) for size in sizes}
        # As a stage does it: one code for all sizes.
        mode = CompiledMode(_Blocks(bench.device), stage="image")
        mode.compile_whole(model.decoder)
        for size in sizes:
            z = latents(size)
            first_s, made = bench.once(functools.partial(decode, z))
            compiled = bench.clock(functools.partial(decode, z))
            _say(
                f"{kind} {size}: eager {eager[size]:.1f} ms, compiled {compiled:.1f} ms = "
                f"{compiled / eager[size]:.3f}; first call {first_s:.1f} s; "
                f"{_quality(_pixels(own[size]), _pixels(made))}; "
                f"again equal {torch.equal(made, decode(z))}; compile_s {mode.counters.compile_s:.1f}"
            )
        mode.close()
        torch._dynamo.reset()
        if kind == "kl":
            static = torch.compile(model.decoder.forward, fullgraph=True, dynamic=False)
            z = latents(sizes[0])
            first_s, made = bench.once(functools.partial(static, z))
            compiled = bench.clock(functools.partial(static, z))
            _say(f"{kind}, code for one size {sizes[0]}: {compiled:.1f} ms; first call {first_s:.1f} s")
            torch._dynamo.reset()


class _Blocks(torch.nn.Module):
    """A denoiser for a mode that only compiles a decoder."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(8, 8, device=device) for _ in range(2))


def _make_vae(kind: str, bench: Bench) -> Any:
    blocks = {"down_block_types": ["DownEncoderBlock2D"] * 4, "up_block_types": ["UpDecoderBlock2D"] * 4}
    small = {**blocks, "block_out_channels": (32, 32, 32, 32)}
    with models.drawn_on(bench.device, bench.dtype):
        if kind == "flux2":
            made = diffusers.AutoencoderKLFlux2(**(small if bench.tiny else {}))
        else:
            sizes = small if bench.tiny else {**blocks, "block_out_channels": (128, 256, 512, 512)}
            made = diffusers.AutoencoderKL(
                latent_channels=16, layers_per_block=2, use_quant_conv=False, use_post_quant_conv=False, **sizes
            )
    return made.eval().requires_grad_(False)


def float8(bench: Bench) -> None:
    model, pipeline = bench.qwen_image("small" if bench.tiny else "big")
    prompt = images._prompt(40)
    plain_s, _, expected = images.Plain(model, pipeline).run([prompt])
    ready_s, sixteen = bench.omni(model, pipeline, bench.keys)
    _say(f"bfloat16: ready {ready_s:.1f} s")
    quantized = {} if bench.tiny else {"quantization": "float8_dynamic"}
    ready_s, eight = bench.omni(model, pipeline, {**bench.keys, **quantized})
    layers = eight.executor.effective.get("quantized_weights")
    _say(f"float8: ready {ready_s:.1f} s, {layers} layers")
    made = [[_request(side, prompt, seed) for seed in (0, 1)] for side in (sixteen, eight)]
    _say(f"plain diffusers {plain_s:.2f} s; bfloat16 against it: {_quality(expected, made[0][0][0])}")
    _say(f"two seeds: {_quality(made[0][0][0], made[0][1][0])}")
    for seed in (0, 1):
        _say(f"seed {seed}, float8 against bfloat16: {_quality(made[0][seed][0], made[1][seed][0])}")
    before, after, ratio = bench.pairs(lambda: _request(sixteen, prompt, 0), lambda: _request(eight, prompt, 0), 2, 1)
    steps = [side[1][1] * 1e3 for side in made]
    _say(f"image, ms: {before:.0f} and {after:.0f}, {ratio}; step of two forwards {steps[0]:.1f} and {steps[1]:.1f} ms")


def _request(side: Any, prompt: str, seed: int) -> tuple[np.ndarray, float, float]:
    """Return the image of a request, the median seconds of its steps, and those of its decode."""
    wanted = side.executor.resolve(DiffusionRequest("0", prompt, seed=seed))
    (output,) = side.executor.execute_model((wanted,))
    if output.error is not None:
        raise output.error
    return np.asarray(output.images[0]), statistics.median(output.times.denoise_step_s), output.times.vae_decode_s


def small(bench: Bench) -> None:
    model, pipeline = bench.qwen_image("small")
    ready_s, side = bench.omni(model, pipeline, {})
    effective = side.executor.effective
    _say(f"ready {ready_s:.1f} s: {effective['execution']}, {effective.get('execution_reason')}")
    _request(side, images._prompt(9), 0)
    new: list[float] = []
    known: list[float] = []
    for length in range(10, 12 if bench.tiny else 26):
        for times in (new, known):
            times.append(bench.once(functools.partial(_request, side, images._prompt(length), 0))[0] * 1e3)
    for name, times in (("new", new), ("known", known)):
        _say(f"{name} length: {statistics.median(times):.1f} ms [{min(times):.1f}, {max(times):.1f}]")
    prompt = images._prompt(12)
    expected = images.Plain(model, pipeline).run([prompt])[2]
    _say(f"against plain diffusers: {_quality(expected, _request(side, prompt, 0)[0])}")
    _compare_calls(bench, effective["execution"], side, prompt)
    _compare_calls(bench, "eager", bench.omni(model, pipeline, {"execution": "eager"})[1], prompt)


def small_without_cudnn(bench: Bench) -> None:
    torch.backends.cuda.enable_cudnn_sdp(False)
    small(bench)


def _compare_calls(bench: Bench, name: str, side: Any, prompt: str) -> None:
    def run(calling: Any) -> np.ndarray:
        side.executor._runner._calling = calling
        return _request(side, prompt, 0)[0]

    # The call of a pipeline has `no_grad` of its own.
    a, b = functools.partial(run, contextlib.nullcontext), functools.partial(run, torch.inference_mode)
    is_equal = np.array_equal(a(), b())
    before, after, ratio = bench.pairs(a, b, 4, 1)
    _say(f"{name}, no_grad and inference_mode: {before:.1f} and {after:.1f} ms, {ratio}; equal {is_equal}")


def klein(bench: Bench) -> None:
    model = kinds.kinds(tiny=bench.tiny)["flux.2-klein"]
    pipeline = model.make(bench.device)
    kept: Any = execution._COMPILED_VAES
    execution._COMPILED_VAES = ()  # type: ignore[assignment]
    without_s, without = bench.omni(model, pipeline, bench.keys)
    execution._COMPILED_VAES = kept
    pipeline.vae = models.twin(pipeline.vae)
    with_s, compiled = bench.omni(model, pipeline, bench.keys)
    _say(f"ready {without_s:.1f} s without, {with_s:.1f} s with a compiled decoder, the denoiser's code from the cache")
    (a, _, a_s), (b, _, b_s) = (_request(side, "an image", 0) for side in (without, compiled))
    _say(f"decode {a_s * 1e3:.1f} and {b_s * 1e3:.1f} ms; {_quality(a, b)}")
    _say(f"another seed: {_quality(a, _request(without, 'an image', 1)[0])}")
    before, after, ratio = bench.pairs(
        lambda: _request(without, "an image", 0), lambda: _request(compiled, "an image", 0), 6, 2
    )
    _say(f"image: {before:.1f} and {after:.1f} ms, {ratio}")


@torch.inference_mode()
def attention(bench: Bench) -> None:
    kernels = {
        "cuDNN": (SDPBackend.CUDNN_ATTENTION, False), "FlashAttention 2": (SDPBackend.FLASH_ATTENTION, False),
        "default, mask of ones": (None, True), "efficient, mask of ones": (SDPBackend.EFFICIENT_ATTENTION, True),
    }  # fmt: skip
    if bench.tiny:
        kernels = {"default, mask of ones": (None, True)}
    for tokens in (80,) if bench.tiny else (4160, 1088, 320):
        q, k, v = (
            torch.randn(1, tokens, 24, 128, device=bench.device, dtype=bench.dtype).transpose(1, 2) for _ in range(3)
        )
        for name, (backend, masked) in kernels.items():
            with contextlib.nullcontext() if backend is None else sdpa_kernel(backend):
                run = functools.partial(_attend, [q, k, v], masked)
                run()
                ms = statistics.median(bench.clock(run, 20) for _ in range(5))
                firsts = []
                for less in (1, 2, 3):
                    cut = [each[:, :, :-less].contiguous() for each in (q, k, v)]
                    firsts.append(bench.once(functools.partial(_attend, cut, masked))[0] * 1e3)
            _say(f"{tokens} tokens, {name}: {ms * 1e3:.0f} us, first of a length {statistics.median(firsts):.1f} ms")


def _attend(parts: Sequence[torch.Tensor], masked: bool) -> torch.Tensor:
    shape = (1, 1, 1, parts[0].shape[2])
    mask = torch.ones(shape, dtype=torch.bool, device=parts[0].device) if masked else None
    q, k, v = parts
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def rates(bench: Bench) -> None:
    seconds, made = bench.once(lambda: tracer.measure_rates(bench.device, torch.bfloat16))
    _say(
        f"{made.flops_per_second / 1e12:.0f} TFLOP/s, {made.copied_bytes_per_second / 1e9:.0f} GB/s in {seconds:.1f} s"
    )


def _quality(a: np.ndarray, b: np.ndarray) -> str:
    """Compare two images of 8 bits, of height, width and channels."""
    a, b = a.astype(float), b.astype(float)
    error = float(((a - b) ** 2).mean())
    psnr = 10 * np.log10(255**2 / error) if error else float("inf")
    return f"psnr {psnr:.1f} dB, ssim {structural_similarity(a, b):.4f}, at most {int(np.abs(a - b).max())} of 255"


def _pixels(made: torch.Tensor) -> np.ndarray:
    rounded = (made.float() / 2 + 0.5).clamp(0, 1).mul(255).round().to(torch.uint8)
    return np.asarray(rounded[0].permute(1, 2, 0).cpu())


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


PARTS: dict[str, Callable[[Bench], None]] = {
    "waits": waits, "vae": vae, "float8": float8, "small": small, "small-without-cudnn": small_without_cudnn,
    "klein": klein, "attention": attention, "rates": rates,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--tiny", action="store_true", help="small models on a CPU, to try the script")
    options = parser.parse_args()
    if options.tiny:
        # Without generated code, which takes a CPU minutes.
        torch.compile = functools.partial(torch.compile, backend="eager")
    bench = Bench(tiny=options.tiny)
    for name in options.parts:
        _say(f"# {name}")
        PARTS[name](bench)


if __name__ == "__main__":
    main()
