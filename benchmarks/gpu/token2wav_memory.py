"""Device memory of token2wav alone, by cause, and what its requests take with batches of at most `--blocks`.

    PYTHONPATH=. python benchmarks/gpu/token2wav_memory.py [--blocks 1280] [--frames 4000] [--share 0.12] [--trace]
        [--loads "32" "32 streamed"]

Sizes of Qwen2.5-Omni-7B's token2wav and random weights, in the profile's mode; no vLLM, no checkpoint. A process must
have the device to itself. After each part of the start: what the device has in use, what of it torch has reserved, in
tensors and per memory pool ((0, 0) is that of calls without graphs), and the rest, which is CUDA's context, libraries
and graphs outside of torch. `--trace` adds the tensors that live at the peak of the largest graph, by line of code.
With `--share`, torch keeps to that part of the device, as a stage does. Each load ends with a digest of its samples:
sides with the same one made the same bits. A streamed load has all codes at once, and each request in its chunks.

Blocks of each request's sizes, as torch reserves by default: `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False`; a
stage of omni has `expandable_segments:True`.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import hashlib
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import token2wav_batching as kit
import torch

from omni_cli.models.qwen2_5_omni.settings import Token2WavConfig
from omni_cli.models.qwen2_5_omni.token2wav.cuda import bucket, buckets
from omni_cli.models.qwen2_5_omni.token2wav.cuda import vocoder as vocoder_module
from omni_cli.models.qwen2_5_omni.token2wav.request import Chunker, ChunkSizes, SynthesisRequest
from omni_cli.models.qwen2_5_omni.token2wav.synthesizer import TYPICAL_BLOCKS, Synthesizer

GIB, MIB = 1 << 30, 1 << 20
MAX_NUM_SEQS = 32
STREAMED = " streamed"
LOADS = {
    "1": [200], "8": [200] * 8, "32": [200] * 32, "32 mixed": [60 + 280 * index // 31 for index in range(32)],
    "32" + STREAMED: [200] * 32,
}  # fmt: skip


class Report:
    """Lines about the device's memory, each with the growth since the one before."""

    def __init__(self, device: torch.device) -> None:
        self._on_device = device.type == "cuda"
        self._before = 0.0

    def say(self, label: str) -> None:
        if not self._on_device:
            _say(label)
            return
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        used, reserved = (total - free) / GIB, torch.cuda.memory_reserved() / GIB
        pools: dict[Any, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for segment in torch.cuda.memory_snapshot():
            pools[segment["segment_pool_id"]][0] += segment["total_size"] / GIB
            pools[segment["segment_pool_id"]][1] += segment["active_size"] / GIB
        text = "; ".join(f"{pool} {size:.3f}, {live:.3f} in tensors" for pool, (size, live) in sorted(pools.items()))
        _say(
            f"{label}: device {used:.2f} ({used - self._before:+.2f}), outside torch {used - reserved:.2f}, reserved "
            f"{reserved:.2f}, tensors {torch.cuda.memory_allocated() / GIB:.2f}, at most "
            f"{torch.cuda.max_memory_allocated() / GIB:.2f} since the last line | {text}"
        )
        self._before = used
        torch.cuda.reset_peak_memory_stats()


class Side(kit.After):
    """token2wav with the profile's keys, on the device or, eager and in float32, on a CPU."""

    def __init__(self, model: Any, speaker: dict[str, torch.Tensor], on_device: bool) -> None:
        keys = {"execution": "cudagraph", "precision": "tf32"} if on_device else {"execution": "eager"}
        self.stage = Token2WavConfig.create(
            "token2wav", backend="vllm", max_num_seqs=MAX_NUM_SEQS, batching="padded", **keys
        )
        self.synthesizer = Synthesizer(model, {"one": speaker}, self.stage)
        self.execution_mode = self.synthesizer.execution_mode


@torch.inference_mode()
def main() -> None:
    options = _options()
    device = torch.device("cuda" if torch.cuda.is_available() and not options.tiny else "cpu")
    on_device, report = device.type == "cuda", Report(device)
    torch.backends.cudnn.deterministic = True
    vocoder_module.MAX_FRAMES_PER_CALL = options.frames
    if on_device:
        from omni_cli.models.qwen2_5_omni.token2wav.cuda import platform

        platform.MAX_BLOCKS = options.blocks
        torch.zeros(1, device=device)
        if options.share:
            torch.cuda.set_per_process_memory_fraction(options.share)
    report.say("context")
    model = kit.make_model("tiny" if options.tiny else "7b", device)
    config = model.config.dit_config
    report.say("weights")
    draw = torch.Generator().manual_seed(1)
    vector = torch.randn(1, config.enc_emb_dim, generator=draw).to(device)
    mel = torch.randn(1, 300, config.mel_dim, generator=draw).to(device)
    side = Side(model, {"cond": vector, "ref_mel": mel}, on_device)
    report.say("joined weights")
    model.code2wav_dit_model = side.synthesizer.velocity.dit
    report.say("joined weights alone")
    side.use()
    if on_device:
        (first,) = kit.requests_of(LOADS["1"], config.num_embeds, device)
        _capture(side, first, options, report)
    for name in options.loads:
        load = kit.requests_of(LOADS[name], config.num_embeds, device)
        load = [*_chunks(load)] if name.endswith(STREAMED) else load
        done = [kit.run(side, load) for _ in range(options.rounds)][1:]
        total_s = statistics.median(one.total_s for one in done)
        end_s = statistics.median(end for one in done for end in one.finished_s)
        digest = hashlib.sha256(b"".join(done[-1].waveforms[each.request_id].numpy().tobytes() for each in load))
        said = f"{name} requests: {total_s:.4f} s, median completion {end_s:.4f} s, {digest.hexdigest()[:12]}"
        report.say(said)
    if on_device:
        torch.cuda.empty_cache()
        report.say("without what torch keeps for later")


def _chunks(requests: Sequence[SynthesisRequest]) -> Iterator[SynthesisRequest]:
    """Yield a request for each chunk of each stream, which continues the one before it."""
    for each in requests:
        chunks = Chunker(ChunkSizes(context=0)).add(each.codes.tolist(), is_last=True)
        for number, chunk in enumerate(chunks):
            yield dataclasses.replace(
                each, request_id=f"{each.request_id} {number}", codes=torch.tensor(chunk.codes).to(each.codes.device),
                codes_start=chunk.codes_start, start=chunk.start, end=chunk.end, stream=each.request_id,
                continues_at=chunk.continues_at,
            )  # fmt: skip


def _capture(side: Side, request: Any, options: argparse.Namespace, report: Report) -> None:
    """Capture the graphs as the stage does, the denoiser's and then the vocoder's, with a line after each kind."""
    synthesizer = side.synthesizer
    largest = bucket(synthesizer.platform.get_max_blocks(MAX_NUM_SEQS * TYPICAL_BLOCKS))
    began_s = time.perf_counter()
    with synthesizer.arithmetic():
        for number, size in enumerate(reversed(list(buckets(largest)))):
            if options.trace and not number:
                torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python")
            synthesizer.begin([request], functools.partial(max, size)).step()
            if options.trace and not number:
                _say_peak(torch.cuda.memory._snapshot())
                torch.cuda.memory._record_memory_history(enabled=None)
            if number < 3:
                report.say(f"graph of {size} blocks")
        report.say(f"all {number + 1} graphs of the denoiser, {time.perf_counter() - began_s:.1f} s")
        synthesizer.vocoder.capture_ahead()
    report.say(f"graphs of the vocoder, {time.perf_counter() - began_s:.1f} s in all")
    for name, mode in (("denoiser", synthesizer.execution_mode), ("vocoder", synthesizer.vocoder._graphs)):
        inputs = mode.graphs._inputs
        sizes = {name: f"{storage.nbytes() / MIB:.0f}" for name, storage in inputs.items() if storage.nbytes() > MIB}
        _say(f"inputs of the {name}'s graphs, MiB by position: {sizes}")


def _say_peak(snapshot: dict[str, Any]) -> None:
    """Print the tensors at the peak of what was recorded, by the innermost line of a model's code."""
    live: dict[int, tuple[int, str]] = {}
    size, peak, at_peak = 0, 0, {}
    for event in (event for trace in snapshot["device_traces"] for event in trace):
        if event["action"] == "alloc":
            live[event["addr"]] = event["size"], _place(event.get("frames", ()))
            size += event["size"]
        elif event["action"] == "free_requested" and event["addr"] in live:
            size -= live.pop(event["addr"])[0]
        if size > peak:
            peak, at_peak = size, dict(live)
    found: Counter[str] = Counter()
    for num_bytes, place in at_peak.values():
        found[place] += num_bytes
    _say(f"peak of the largest graph, {peak / GIB:.2f} GiB of tensors since before it:")
    for place, num_bytes in found.most_common(16):
        _say(f"  {num_bytes / MIB:8.1f} MiB {place}")


def _place(frames: Any) -> str:
    ours = (frame for frame in frames if "omni_cli" in frame["filename"] or "models/qwen2_5_omni" in frame["filename"])
    frame = next(ours, None) or next(iter(frames), None)
    return f"{Path(frame['filename']).name}:{frame['line']} {frame['name']}" if frame else "unknown"


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=1280, help="in one call of the denoiser, at most")
    parser.add_argument("--frames", type=int, default=vocoder_module.MAX_FRAMES_PER_CALL, help="in one of its vocoder")
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=list(LOADS))
    parser.add_argument("--share", type=float, default=0.0, help="of the device, for torch")
    parser.add_argument("--rounds", type=int, default=4, help="the first warms up")
    parser.add_argument("--trace", action="store_true", help="the largest graph's tensors by line of code")
    parser.add_argument("--tiny", action="store_true", help="a small model on a CPU, to try the script")
    return parser.parse_args()


if __name__ == "__main__":
    main()
