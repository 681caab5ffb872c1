"""token2wav's requests alone and together: time, each one's end, distance to float32, share of a roofline.

    PYTHONPATH=. python benchmarks/gpu/token2wav_batching.py -o DIR [--sizes small --device cpu]

Sizes of Qwen2.5-Omni-7B's token2wav and random weights; no vLLM, no checkpoint. Sides alternate in one process:
`transformers` is its own module, one request after another; `before` its DiT in a CUDA graph per number of codes and
its vocoder, all returned at the end, which is what omni did at a6c332b; the others are `Synthesizer` with the keys in
their name.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omni_cli.core.compat.torchvision import ensure_torchvision_importable

ensure_torchvision_importable()

import torch
from torch import nn
from transformers.audio_utils import mel_filter_bank
from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniToken2WavConfig
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavModel

from omni_cli.backends.execution.modes import make_execution_mode
from omni_cli.backends.execution.precision import use_precision
from omni_cli.models.qwen2_5_omni.settings import Token2WavConfig
from omni_cli.models.qwen2_5_omni.token2wav.request import DenoisingSettings, SynthesisRequest
from omni_cli.models.qwen2_5_omni.token2wav.scheduler import SpeechScheduler
from omni_cli.models.qwen2_5_omni.token2wav.synthesizer import Synthesizer

TINY = {
    "dit_config": {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 16, "emb_dim": 16,
        "look_ahead_layers": [1], "look_backward_layers": [0], "enc_channels": [16, 16, 16, 16, 48],
        "enc_attention_channels": 8, "enc_se_channels": 8, "enc_dim": 16, "enc_emb_dim": 16,
    },
    "bigvgan_config": {"upsample_initial_channel": 64},
}  # fmt: skip
# As in the built-in `small-omni`.
SMALL = {
    "dit_config": {
        "hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4, "emb_dim": 256, "num_embeds": 1087,
        "look_ahead_layers": [3], "look_backward_layers": [0, 5], "enc_channels": [128, 128, 128, 128, 384],
        "enc_dim": 64, "enc_emb_dim": 64,
    },
    "bigvgan_config": {"upsample_initial_channel": 256},
}  # fmt: skip
SIZES = {"7b": {"dit_config": {}, "bigvgan_config": {}}, "small": SMALL, "tiny": TINY}
SAMPLING = DenoisingSettings(10, 0.5, -1.0)
SAMPLE_RATE = 24_000


@dataclass
class Round:
    """Seconds of the whole batch, on the clock and of all processors, and until each waveform."""

    total_s: float
    processor_s: float
    finished_s: list[float]
    waveforms: dict[str, torch.Tensor] = field(repr=False)


class Before:
    """Omni's token2wav at a6c332b: transformers' DiT in CUDA graphs, requests one after another, returned together."""

    def __init__(self, model: Qwen2_5OmniToken2WavModel, speaker: dict[str, torch.Tensor], execution: str) -> None:
        self._model, self._speaker = model, speaker
        self._dit = model.code2wav_dit_model
        encoder, mel = self._dit.input_embed.spk_encoder, speaker["ref_mel"]
        encoding = encoder(torch.cat([mel, torch.zeros_like(mel)]))
        encoder.forward = lambda _: encoding
        self.execution_mode = make_execution_mode(self._dit, execution, stage="before", device=str(self._dit.device))

    def use(self) -> None:
        # torch's defaults: products in float32, convolutions in TF32.
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = False, True

    def waveforms(self, requests: Sequence[SynthesisRequest]) -> Iterator[tuple[str, torch.Tensor]]:
        made = []
        for each in requests:
            torch.manual_seed(each.seed)
            mel = self._dit.sample(self._speaker["cond"], self._speaker["ref_mel"], each.codes[None])
            made.append((each.request_id, self._model.code2wav_bigvgan_model(mel)))
        yield from made


class Plain:
    """transformers' token2wav, one request after another."""

    def __init__(self, model: Qwen2_5OmniToken2WavModel, speaker: dict[str, torch.Tensor]) -> None:
        self._model, self._speaker = model, speaker
        self.execution_mode = make_execution_mode(
            model.code2wav_dit_model, "eager", stage="plain", device=str(model.device)
        )

    def use(self) -> None:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = False, True

    def waveforms(self, requests: Sequence[SynthesisRequest]) -> Iterator[tuple[str, torch.Tensor]]:
        for each in requests:
            torch.manual_seed(each.seed)
            yield each.request_id, self._model(each.codes[None], self._speaker["cond"], self._speaker["ref_mel"])


class After:
    """`Synthesizer` with a stage's keys."""

    def __init__(self, model: Qwen2_5OmniToken2WavModel, speaker: dict[str, torch.Tensor], **keys: Any) -> None:
        self.stage = Token2WavConfig.create("token2wav", backend="vllm", max_num_seqs=8, **keys)
        self.synthesizer = Synthesizer(model, {"one": speaker}, self.stage)
        self.execution_mode = self.synthesizer.execution_mode

    def use(self) -> None:
        use_precision(self.stage.precision, stage="token2wav", device=self.synthesizer.device)

    def waveforms(self, requests: Sequence[SynthesisRequest]) -> Iterator[tuple[str, torch.Tensor]]:
        scheduler = SpeechScheduler(self.synthesizer)
        for each in requests:
            scheduler.add(each)
        made = 0
        while made < len(requests):
            finished = scheduler.advance()
            made += len(finished)
            yield from finished.items()


def make_model(sizes: str, device: torch.device) -> Qwen2_5OmniToken2WavModel:
    """Random weights that preserve a signal's scale; those that transformers draws are nearly silent."""
    torch.manual_seed(0)
    with torch.device(device):
        model = Qwen2_5OmniToken2WavModel(Qwen2_5OmniToken2WavConfig(**SIZES[sizes], attn_implementation="sdpa")).eval()
        for name, module in model.code2wav_bigvgan_model.named_modules():
            if isinstance(module, nn.Conv1d):
                # A residual branch adds little, as in a trained vocoder.
                share = 0.3 if "convs2" in name else 1.0
                module.weight.data.normal_(0, share * module.weight[0].numel() ** -0.5)
            elif isinstance(module, nn.ConvTranspose1d):
                inputs = module.weight.shape[0] * module.weight.shape[2] / module.stride[0]
                module.weight.data.normal_(0, inputs**-0.5)
    return model.requires_grad_(False)


def requests_of(lengths: Sequence[int], num_embeds: int, device: torch.device) -> list[SynthesisRequest]:
    draw = torch.Generator().manual_seed(0)
    return [
        SynthesisRequest(
            str(index), torch.randint(0, num_embeds - 1, (length,), generator=draw).to(device),
            0, 0, length, index, "one", SAMPLING,
        )
        for index, length in enumerate(lengths)
    ]  # fmt: skip


@torch.inference_mode()
def run(side: Plain | Before | After, requests: Sequence[SynthesisRequest]) -> Round:
    side.use()
    begin, begin_processor = time.perf_counter(), time.process_time()
    finished, waveforms = [], {}
    for name, samples in side.waveforms(requests):
        waveforms[name] = samples.float().cpu()
        finished.append(time.perf_counter() - begin)
    return Round(time.perf_counter() - begin, time.process_time() - begin_processor, finished, waveforms)


@torch.inference_mode()
def parts(side: After, requests: list[SynthesisRequest], device: torch.device) -> dict[str, float]:
    """Seconds of the denoiser and of the vocoder for `requests`, group by group, with a wait after each."""
    side.use()
    taken = {"denoise_s": 0.0, "vocoder_s": 0.0}
    with side.synthesizer.arithmetic():
        for group in side.synthesizer.batches(requests):
            denoising = side.synthesizer.begin(group)

            def denoise(denoising: Any = denoising) -> None:
                for _ in range(SAMPLING.num_steps - 1):
                    denoising.step()

            def sound(denoising: Any = denoising, group: Any = group) -> None:
                list(side.synthesizer.waveforms(group, denoising.mels()))

            taken["denoise_s"] += seconds(denoise, device)
            taken["vocoder_s"] += seconds(sound, device)
    return taken


def seconds(work: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def denoiser_flops(model: Qwen2_5OmniToken2WavModel, num_frames: int) -> float:
    """Operations of a guided request in linear layers, and in attention within blocks."""
    config = model.config.dit_config
    inner, hidden = config.head_dim * config.num_attention_heads, config.hidden_size
    layer = 4 * hidden * inner + 2 * hidden * hidden * config.ff_mult + 2 * config.block_size * inner
    ends = hidden * (2 * config.mel_dim + config.enc_dim + config.emb_dim + config.enc_emb_dim)
    return 2.0 * 2 * num_frames * (config.num_hidden_layers * layer + ends) * 4 * (SAMPLING.num_steps - 1)


def vocoder_flops(model: Qwen2_5OmniToken2WavModel, num_frames: int) -> float:
    """Operations of the convolutions that mix channels."""
    total, samples = 0.0, float(num_frames)
    vocoder = model.code2wav_bigvgan_model
    total += 2 * samples * vocoder.conv_pre.weight.numel()
    for stage, rate in enumerate(vocoder.config.upsample_rates):
        total += 2 * samples * vocoder.ups[stage][0].weight.numel()
        samples *= rate
        per_stage = vocoder.num_residual_blocks
        for block in vocoder.resblocks[stage * per_stage : (stage + 1) * per_stage]:
            total += sum(2 * samples * conv.weight.numel() for conv in (*block.convs1, *block.convs2))
    return total


def ceilings(device: torch.device, size: int) -> dict[str, float]:
    """TFLOP/s of a large matrix product through torch, on random numbers."""
    rates = {}
    for name in ("float32", "tf32", "bfloat16"):
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        dtype = torch.bfloat16 if name == "bfloat16" else torch.float32
        one, other = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
        one @ other
        times = [seconds(lambda one=one, other=other: one @ other, device) for _ in range(5)]
        rates[name] = 2 * size**3 / statistics.median(times) / 1e12
    return rates


def log_mel(samples: torch.Tensor) -> torch.Tensor:
    """(80, num_frames) natural logarithms."""
    window = torch.hann_window(1024)
    spectrum = torch.stft(samples, 1024, 256, window=window, return_complex=True).abs()
    filters = torch.from_numpy(mel_filter_bank(513, 80, 0.0, SAMPLE_RATE / 2, SAMPLE_RATE)).float()
    return (filters.T @ spectrum).clamp_min(1e-5).log()


def distances(made: dict[str, torch.Tensor], reference: dict[str, torch.Tensor]) -> dict[str, float]:
    """Return the worst values of all requests."""
    pairs = [(made[name], reference[name]) for name in reference]
    return {
        "log_mel": max((log_mel(one) - log_mel(other)).abs().mean().item() for one, other in pairs),
        "sample": max((one - other).abs().max().item() for one, other in pairs),
        "snr_db": min(
            (10 * torch.log10(other.square().sum() / (one - other).square().sum().clamp_min(1e-30))).item()
            for one, other in pairs
        ),
    }


def workloads(num_codes: int) -> dict[str, list[int]]:
    draw = torch.Generator().manual_seed(7)
    mixed = torch.randint(num_codes * 3 // 10, num_codes * 17 // 10, (32,), generator=draw).tolist()
    equal = {f"{count} equal": [num_codes] * count for count in (1, 8, 32)}
    return {**equal, "8 mixed": mixed[:8], "32 mixed": mixed}


def sides_of(model: Qwen2_5OmniToken2WavModel, twin: Any, device: torch.device) -> dict[str, Callable[[], Any]]:
    config = model.config.dit_config
    draw = torch.Generator().manual_seed(1)
    speaker = {
        "cond": torch.randn(1, config.enc_emb_dim, generator=draw).to(device),
        "ref_mel": torch.randn(1, 300, config.mel_dim, generator=draw).to(device),
    }
    execution = "cudagraph" if device.type == "cuda" else "eager"
    found: dict[str, Callable[[], Any]] = {
        "transformers": lambda: Plain(twin(model), speaker),
        "before": lambda: Before(twin(model), speaker, execution),
        "exact float32": lambda: After(twin(model), speaker, execution=execution, batching="exact"),
        "padded float32": lambda: After(twin(model), speaker, execution=execution, batching="padded"),
    }
    for precision in ("tf32", "bfloat16") if device.type == "cuda" else ("bfloat16",):
        found[f"padded {precision}"] = lambda precision=precision: After(
            twin(model), speaker, execution=execution, batching="padded", precision=precision
        )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output-dir", type=Path, required=True)
    parser.add_argument("--sizes", choices=SIZES, default="7b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--num-codes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workload", action="append")
    parser.add_argument("--side", action="append")
    options = parser.parse_args()
    from models import twin

    device = torch.device(options.device)
    torch.backends.cudnn.deterministic = True
    record: dict[str, Any] = {"device": _name(device), "torch": torch.__version__, "sizes": options.sizes}
    record["threads"] = torch.get_num_threads()
    record["ceilings_tflops"] = ceilings(device, 8192 if device.type == "cuda" else 2048)
    model = make_model(options.sizes, device)
    sides = {}
    for name, make in sides_of(model, twin, device).items():
        if not options.side or name in options.side:
            with torch.inference_mode():
                sides[name] = make()
    chosen = {
        name: lengths for name, lengths in workloads(options.num_codes).items() if name in (options.workload or [name])
    }
    record["workloads"] = {}
    options.output_dir.mkdir(parents=True, exist_ok=True)
    for name, lengths in chosen.items():
        requests = requests_of(lengths, model.config.dit_config.num_embeds, device)
        record["workloads"][name] = measured(name, sides, requests, model, options, record)
        # After each side, so that an interrupted run keeps the earlier ones.
        (options.output_dir / f"token2wav-batching-{options.sizes}.json").write_text(json.dumps(record, indent=1))
    return 0


def measured(
    name: str, sides: dict[str, Any], requests: list[SynthesisRequest], model: Any, options: Any, record: dict[str, Any]
) -> dict[str, Any]:
    """Run the rounds of all sides, alternating; the first of each, in which graphs are captured, is kept apart."""
    device = torch.device(options.device)
    first = {side: run(each, requests) for side, each in sides.items()}
    rounds: dict[str, list[Round]] = {side: [] for side in sides}
    for number in range(options.rounds):
        for side, each in sides.items():
            # One round is enough, because it takes half a minute.
            if side.startswith("padded") or len(requests) < 32 or number < 1:
                rounds[side].append(run(each, requests))
    reference = first["exact float32"].waveforms if "exact float32" in first else None
    num_frames = sum(len(each.codes) for each in requests) * 2
    flops = {"denoise_s": denoiser_flops(model, num_frames), "vocoder_s": vocoder_flops(model, num_frames)}
    found: dict[str, Any] = {}
    for side, done in rounds.items():
        totals = [each.total_s for each in done]
        row = found[side] = {
            "first_total_s": first[side].total_s,
            "total_s": statistics.median(totals),
            "rounds_s": totals,
            "processor_s": [each.processor_s for each in done],
            "range_s": [min(totals), max(totals)],
            "median_completion_s": statistics.median(statistics.median(each.finished_s) for each in done),
            "first_completion_s": statistics.median(each.finished_s[0] for each in done),
            "per_audio_second": statistics.median(totals) / (num_frames / 100),
            "counters": sides[side].execution_mode.counters.as_dict(),
            "same_each_time": all(
                torch.equal(each.waveforms[one], done[0].waveforms[one]) for each in done for one in each.waveforms
            ),
        }
        # On a GPU, transformers draws different noise.
        if reference is not None and (side not in ("before", "transformers") or device.type == "cpu"):
            row["distance"] = distances(done[0].waveforms, reference)
        if isinstance(sides[side], After) and (side.startswith("padded") or len(requests) == 1):
            row["parts"] = min(
                (parts(sides[side], requests, device) for _ in range(3)), key=lambda each: sum(each.values())
            )
            precision = sides[side].stage.precision or "float32"
            for part, count in flops.items():
                rate = row["parts"][part.replace("_s", "_tflops")] = count / row["parts"][part] / 1e12
                if "ceilings_tflops" in record:
                    row["parts"][part.replace("_s", "_share")] = rate / record["ceilings_tflops"][precision]
        sys.stdout.write(f"{name:9} {side:16} {_line(row)}\n")
        sys.stdout.flush()
    return found


def _line(row: dict[str, Any]) -> str:
    low, high = row["range_s"]
    text = (
        f"{row['total_s']:8.3f} s [{low:.3f}, {high:.3f}]  median {row['median_completion_s']:.3f}  "
        f"first {row['first_completion_s']:.3f}  new graphs' round {row['first_total_s']:.2f}"
    )
    if "distance" in row:
        text += f"  log-mel {row['distance']['log_mel']:.2e}  snr {row['distance']['snr_db']:.0f} dB"
    if "parts" in row:
        shares = row["parts"]
        text += f"  denoiser {shares['denoise_s']:.3f} s {shares['denoise_tflops']:.1f} TFLOP/s"
        text += f" {shares.get('denoise_share', float('nan')):.2f}"
        text += f"  vocoder {shares['vocoder_s']:.3f} s {shares['vocoder_tflops']:.1f} TFLOP/s"
        text += f" {shares.get('vocoder_share', float('nan')):.2f}"
    return text


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


if __name__ == "__main__":
    sys.exit(main())
