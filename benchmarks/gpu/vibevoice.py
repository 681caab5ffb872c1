"""VibeVoice at the 1.5B's sizes on one GPU: CUDA graphs, eager, and transformers' own generate.

    PYTHONPATH=. python benchmarks/gpu/vibevoice.py -o DIR [--clients 1 8 32] [--frames 75] [--rounds 2]
        [--folder FOLDER]

Random bfloat16 weights, with which every token is sound, so that each request has `--frames` frames of 133 ms. A
request has 64 tokens of prompt. Two engines and transformers' model stay on the device, and take their rounds one after
another; all requests of an engine's round enter at once and are streamed, and transformers makes one request alone. One
round warms up. `--folder` writes the checkpoint there, or reads the one that is there.

RTF is a request's time over that of its audio, `audio_rate` the seconds of audio that all requests make in one second.
A step has the backbone's forward pass, then `head`: the diffusion, the decoder and the encoder; both by the device's
clock. The rest is the host's, the branches' and the sampler's. Medians over requests and steps. `memory_gib` is what
the side has taken of the device, its KV cache of `--kv-cache` bytes included.

DIR gets one `omni.bench/1` record and the printed summary. `--tiny` runs a small model on any device that vLLM
supports, and is meaningless for speed.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from omni_cli.core.compat.libraries import prepare_libraries  # isort: skip

prepare_libraries()

import msgspec
import torch
from environment import kit_command, kit_environment
from omni_checkpoint import TOKENIZER_SIZE, drawn_on_device
from transformers import VibeVoiceForConditionalGeneration, VibeVoiceProcessor

from omni_cli.backends.execution.counters import since
from omni_cli.checkpoints.tiny import DecoderSizes
from omni_cli.checkpoints.tiny_speech import VibeVoiceSizes, vibevoice
from omni_cli.config.loader import load_profile
from omni_cli.engine.omni_llm import OmniLLM
from omni_cli.measure.bench.prompts import Prompts
from omni_cli.records.record import Record, Sample, Variant, workload_fingerprint
from omni_cli.records.record_file import save_record
from omni_cli.requests.contents import SpeechOptions, TextOptions
from omni_cli.requests.events import AudioChunk
from omni_cli.requests.outputs import GenerateRequest, RequestResult, StageTrace
from omni_cli.stats.blocks import summarise

# The released configuration's; of the head and the tokenizers of sound, transformers' defaults are.
LARGE = VibeVoiceSizes(
    vocab_size=TOKENIZER_SIZE,
    max_position_embeddings=65536,
    backbone=DecoderSizes(1536, 8960, 28, 12, 2, 128),
    acoustic_size=64,
    semantic_size=128,
    num_filters=32,
    num_diffusion_steps=10,
)
VOCABULARY = 151936
DEPTHS = [3, 3, 3, 3, 3, 3, 8]
FRAME = ("Text:\nSpeaker 0: ", "\nSpeech:\n<|vision_start|>")
GRAPHS, EAGER, TRANSFORMERS = "graphs", "eager", "transformers"
GIB = 1 << 30


@dataclass(frozen=True)
class Served:
    """A request: seconds until its first audio and its end, and of its audio; None without a trace."""

    first_audio_s: float
    end_s: float
    audio_s: float
    trace: StageTrace | None = None


def main() -> int:
    options = _options()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch) / "model"
        if not (folder / "config.json").exists():
            write_folder(folder, tiny=options.tiny)
        record = asyncio.run(_measure(folder, options))
    summary = "\n".join(lines_of(record)) + "\n"
    (options.output_dir / "vibevoice.txt").write_text(summary)
    sys.stdout.write(summary)
    return 0


def write_folder(folder: Path, *, tiny: bool) -> None:
    """Write a checkpoint of real or small size, whose every token is sound."""
    checkpoint = vibevoice((VibeVoiceSizes() if tiny else LARGE)._replace(audio_logit=10.0))
    config = checkpoint.models[""].config
    if not tiny:
        config["text_config"]["vocab_size"] = VOCABULARY
        config |= {"diffusion_head_config": {}, "dtype": "bfloat16"}
        for codec in ("audio_config", "semantic_model_config"):
            config[codec]["depths"] = DEPTHS
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint.write(folder, seed=0, **({} if tiny else {"draw": drawn_on_device}))


async def _measure(folder: Path, options: argparse.Namespace) -> Record:
    prompts = Prompts(str(folder), 64, frame=FRAME)
    engines: dict[str, OmniLLM] = {}
    memory: dict[str, float] = {}
    modes = {GRAPHS: "full_and_piecewise", EAGER: "none"} if torch.cuda.is_available() else {EAGER: "none"}
    for side, mode in modes.items():
        free = _free_bytes()
        engines[side] = OmniLLM(_config(folder, mode, options), verbose=options.verbose)
        began_s = time.perf_counter()
        await engines[side].start()
        memory[side] = (free - _free_bytes()) / GIB
        (info,) = engines[side].stages
        loaded = f"{side} loaded in {time.perf_counter() - began_s:.1f} s, {memory[side]:.1f} GiB"
        _say(f"{loaded}: {info.execution_counters}")
    free = _free_bytes()
    reference = _Reference(folder, options.frames)
    variants: list[Variant] = []
    try:
        for clients in options.clients:
            samples: dict[str, list[Sample]] = {side: [] for side in (*engines, TRANSFORMERS)}
            for number, (position, side) in itertools.product(range(-1, options.rounds), enumerate(samples)):
                texts = [prompts.draw(number + 100 * clients, index) for index in range(clients)]
                llm = engines.get(side)
                before = llm.stages[0].execution_counters if llm else {}
                began_s = time.perf_counter()
                if llm:
                    served = await asyncio.gather(*(_request(llm, text, index) for index, text in enumerate(texts)))
                elif clients == 1:
                    served = [reference.speak(texts[0])]
                else:
                    continue
                seconds = time.perf_counter() - began_s
                _say(f"{clients} clients, {side}, round {number}: {seconds:.2f} s")
                if number >= 0:
                    ran = {"speaker": since(before, llm.stages[0].execution_counters)} if llm else {}
                    samples[side].append(_sample(number, position, seconds, served, ran))
            memory[TRANSFORMERS] = (free - _free_bytes()) / GIB
            variants += [_variant(clients, side, done, memory[side]) for side, done in samples.items() if done]
            # Keep what is measured, whatever happens next.
            record = _record(variants, options)
            save_record(record, options.output_dir / "vibevoice.json")
    finally:
        for llm in engines.values():
            await llm.close()
    return record


def _config(folder: Path, mode: str, options: argparse.Namespace) -> Any:
    settings = [
        f"speaker.cudagraph_mode={mode}", "speaker.sampling.ignore_eos=true",
        f"speaker.sampling.max_tokens={options.frames}", f"speaker.kv_cache_memory_bytes={options.kv_cache}",
    ]  # fmt: skip
    if not options.tiny:
        settings += ["speaker.max_model_len=8192", "speaker.max_num_seqs=32"]
    profile = "tiny-vibevoice" if options.tiny else "vibevoice-1.5b"
    return load_profile(profile, (*settings, *options.set), model=str(folder))


async def _request(llm: OmniLLM, prompt: str, seed: int) -> Served:
    began_s = time.perf_counter()
    first_s = None
    num_samples = 0
    async for event in llm.generate(
        GenerateRequest(
            str(seed), prompt, seed=seed, text=TextOptions(raw=True), speech=SpeechOptions(stream_audio=True)
        )
    ):
        if isinstance(event, AudioChunk):
            first_s = first_s or time.perf_counter() - began_s
            num_samples += event.samples.size
        last = event
    assert isinstance(last, RequestResult)
    if last.error is not None:
        raise last.error
    assert first_s is not None
    return Served(first_s, time.perf_counter() - began_s, num_samples / 24_000, last.stages[0])


class _Reference:
    """transformers' own model and its `generate`, for one request at a time."""

    def __init__(self, folder: Path, frames: int) -> None:
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._frames = frames
        self._processor = VibeVoiceProcessor.from_pretrained(folder)
        dtype = torch.bfloat16 if self._device == "cuda" else torch.float32
        model = VibeVoiceForConditionalGeneration.from_pretrained(folder, dtype=dtype)
        self._model: Any = model.eval().to(self._device)

    @torch.inference_mode()
    def speak(self, prompt: str) -> Served:
        began_s = time.perf_counter()
        inputs = self._processor.tokenizer(prompt, return_tensors="pt").to(self._device)
        (audio,) = self._model.generate(**inputs, do_sample=False, max_new_tokens=self._frames)
        num_samples = audio.cpu().numel()
        end_s = time.perf_counter() - began_s
        return Served(end_s, end_s, num_samples / 24_000)


def _free_bytes() -> int:
    if not torch.cuda.is_available():
        return 0
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]


def _sample(
    number: int, position: int, seconds: float, served: list[Served], ran: dict[str, dict[str, float]]
) -> Sample:
    audio_s = sum(one.audio_s for one in served)
    metrics = {
        "rtf": _median(one.end_s / one.audio_s for one in served),
        "ttfp_s": _median(one.first_audio_s for one in served),
        "audio_rate": audio_s / seconds,
    }
    traces = [one.trace for one in served if one.trace is not None]
    if traces:
        step, backbone, head = (
            _median(itertools.chain.from_iterable(each))
            for each in (
                ([later - earlier for earlier, later in itertools.pairwise(trace.token_times_s)] for trace in traces),
                (trace.backbone_s[1:] for trace in traces),
                (trace.code_predictor_s[1:] for trace in traces),
            )
        )
        metrics |= {"step_s": step, "backbone_s": backbone, "head_s": head, "rest_s": step - backbone - head}
    return Sample(
        block=number, position=position, e2e_s=seconds, metrics=metrics, work={"audio_s": audio_s},
        execution_counters=ran,
    )  # fmt: skip


def _median(values: Iterable[float]) -> float:
    return float(statistics.median(values))


def _variant(clients: int, side: str, samples: list[Sample], memory_gib: float) -> Variant:
    settings = {"clients": clients, "side": side}
    variant = Variant(
        name=f"clients={clients},side={side}", settings=settings, effective={"memory_gib": round(memory_gib, 2)},
        samples=tuple(samples),
    )  # fmt: skip
    summaries = {metric: summarise(variant, metric) for metric in ("e2e_s", *samples[0].metrics)}
    return msgspec.structs.replace(variant, summary={metric: item for metric, item in summaries.items() if item})


def _record(variants: list[Variant], options: argparse.Namespace) -> Record:
    workload = {
        "model": "VibeVoice, " + ("tiny" if options.tiny else "1.5B's sizes") + ", random weights",
        "frames": options.frames, "settings": [*options.set],
    }  # fmt: skip
    return Record(
        created=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"), command=kit_command(),
        environment=kit_environment(), workload={**workload, "fingerprint": workload_fingerprint(workload)},
        variants=tuple(variants),
    )  # fmt: skip


def lines_of(record: Record) -> list[str]:
    """Format the summary: a line per variant, with medians over rounds."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    lines = [f"{device}, torch {torch.__version__}, {record.workload['model']}, {record.workload['frames']} frames"]
    for variant in record.variants:
        medians = "   ".join(f"{metric} {item.median:.4g}" for metric, item in variant.summary.items())
        lines.append(f"{variant.name}   {medians}   memory_gib {variant.effective['memory_gib']}")
    return lines


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output-dir", type=Path, required=True)
    parser.add_argument("--folder", type=Path, help="of the checkpoint")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try the script")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--frames", type=int, default=75)
    parser.add_argument("--rounds", type=int, default=2, help="after one that warms up")
    parser.add_argument("--kv-cache", type=int, default=2 << 30, metavar="BYTES")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as of `omni generate`")
    parser.add_argument("-v", "--verbose", action="store_true")
    options = parser.parse_args()
    options.output_dir.mkdir(parents=True, exist_ok=True)
    return options


if __name__ == "__main__":
    sys.exit(main())
