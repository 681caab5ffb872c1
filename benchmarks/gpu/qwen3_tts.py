"""Qwen3-TTS at the 1.7B's sizes on one GPU, beside vllm-omni and the publisher's package, interleaved.

    PYTHONPATH=. python benchmarks/gpu/qwen3_tts.py -o DIR [--clients 1 8 32] [--frames 125] [--rounds 3]
        [--folder FOLDER] [--publisher PATHS] [--vllm-omni PATHS [--batches 1 8]] [--without-omni]

PATHS are folders of packages, joined by colons, put before the others in a process of their own: `qwen_tts` 0.1.1 with
the transformers that it needs, or vllm-omni with its vLLM (`qwen3_tts_vllm_omni.py`, where `--batches` is explained;
one process for each number). Random bfloat16 weights whose end is never drawn, so that each request has `--frames`
frames of 80 ms; all sides sample as the checkpoint says. They stay on the device and take their rounds one after
another; all requests of a round enter at once. omni and vllm-omni run them whole and streamed; the package runs a round
as one batch and returns whole audio. One round warms up. A side that ends is left out from then on.

RTF is a request's time over that of its audio, `audio_rate` the seconds of audio that a round makes in one second.
Medians over rounds, with the least and the greatest. `memory_gib` is what a side holds of the device after its rounds,
all its processes together. `J/min` are the joules of the device per minute of sound, over a side's own rounds with so
many requests, once these have two seconds in all (`sound_energy.py`). `--tiny` runs a small model anywhere, and is
meaningless for speed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import math
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

WORKER, PUBLISHER = "--worker", "publisher"
# Before omni sets what vLLM reads.
ENVIRONMENT = dict(os.environ)
READY_S = 300.0
TEXTS = (
    "The boats come home in the evening, and the lighthouse is red.", "What is the capital of France, and why?",
    "Tell me about the rain on a tin roof, slowly and quietly.", "And now the weather for the coast and the hills.",
)  # fmt: skip


def main() -> int:
    options = _options()
    from omni_cli.core.compat.libraries import prepare_libraries

    prepare_libraries()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch) / "model"
        if not (folder / "config.json").exists():
            write_folder(folder, tiny=options.tiny)
        asyncio.run(_measure(folder, options))
    return 0


def write_folder(folder: Path, *, tiny: bool) -> None:
    """Write a checkpoint of the release's or of small sizes, whose first codes are never the end."""
    import torch
    from omni_checkpoint import drawn_on_device
    from safetensors.torch import load_file, save_file

    from omni_cli.models.qwen3_tts.tiny import Qwen3TTSSizes, qwen3_tts

    folder.mkdir(parents=True, exist_ok=True)
    draw = {} if tiny else {"draw": drawn_on_device}
    qwen3_tts("custom_voice", Qwen3TTSSizes() if tiny else released()).write(folder, seed=0, **draw)
    (file,) = folder.glob("*.safetensors")
    state = load_file(file)
    end = json.loads((folder / "config.json").read_text())["talker_config"]["codec_eos_token_id"]
    state["talker.codec_head.weight"][end] = 0
    save_file({name: tensor.to(torch.bfloat16) for name, tensor in state.items()}, file, metadata={"format": "pt"})


def released() -> Any:
    """Return the sizes of the release of 1.7B, except its tokenizer."""
    from omni_checkpoint import TOKENIZER_SIZE

    from omni_cli.checkpoints.tiny import DecoderSizes
    from omni_cli.checkpoints.tiny_qwen3 import CodecSizes
    from omni_cli.checkpoints.tiny_speech import MimiSizes
    from omni_cli.models.qwen3_tts.tiny import Qwen3TTSSizes

    return Qwen3TTSSizes(
        vocab_size=TOKENIZER_SIZE, text_hidden_size=2048, num_codes=2048, max_position_embeddings=32768,
        talker=DecoderSizes(2048, 6144, 28, 16, 8, 128), predictor=DecoderSizes(1024, 3072, 5, 16, 8, 128),
        code2wav=CodecSizes(512, 1024, 8, 16, 16, 1536), codec_head_dim=64, codebook_dim=512, latent_dim=1024,
        encoder=MimiSizes(512, 2048, 8, 8, 64, 256, 2048), voice_channels=512,
    )  # fmt: skip


def load_config(folder: Path, options: argparse.Namespace) -> Any:
    """Return the configuration of omni's side."""
    from omni_cli.config.loader import load_profile

    keys = [f"talker.sampling.max_tokens={options.frames + 1}", *options.set]
    return load_profile("tiny-qwen3-tts" if options.tiny else "qwen3-tts-1.7b", keys, model=str(folder))


async def _measure(folder: Path, options: argparse.Namespace) -> None:
    # They load at the same time as omni.
    others = {name: Neighbour(name, command, paths) for name, command, paths in _neighbours(folder, options)}
    began_s, llm = time.perf_counter(), None
    if not options.without_omni:
        from omni_cli.engine.omni_llm import OmniLLM

        llm = OmniLLM(load_config(folder, options))
        await llm.start()
        _say(f"omni is ready after {time.perf_counter() - began_s:.1f} s")
    for name, other in list(others.items()):
        if await asyncio.to_thread(other.wait_until_ready, READY_S - (time.perf_counter() - began_s)):
            _say(f"{name} is ready after {time.perf_counter() - began_s:.1f} s")
        else:
            _say(f"{name} is not ready after {time.perf_counter() - began_s:.1f} s")
            others.pop(name).close()
    from sound_energy import PER_MINUTE, RoundEnergy, RoundMeter

    rounds: list[dict[str, Any]] = []
    meter, energy = RoundMeter(), defaultdict[tuple[int, str], RoundEnergy](RoundEnergy)
    memory: dict[str, float] = {}
    sides = [(side, streamed) for side in ([] if llm is None else ["omni"]) for streamed in (False, True)]
    sides += [(side, way) for side in others for way in ((False,) if side == PUBLISHER else (False, True))]
    numbers = itertools.count()
    for clients in options.clients:
        for number, (side, streamed) in itertools.product(range(-1, options.rounds), sides):
            if (clients > options.publisher_clients and side == PUBLISHER) or (side != "omni" and side not in others):
                continue
            texts = [f"{next(numbers)}. {TEXTS[index % len(TEXTS)]}" for index in range(clients)]
            await meter.begin()
            began_s = time.perf_counter()
            if side == "omni":
                done = await asyncio.gather(*(_speak(llm, text, streamed=streamed) for text in texts))
            else:
                try:
                    done = await asyncio.to_thread(others[side].speak, texts, streamed)
                except (EOFError, BrokenPipeError):
                    _say(f"{side} has ended")
                    others.pop(side).close()
                    continue
            seconds, used = time.perf_counter() - began_s, await meter.end()
            firsts, ends, num_samples = ([one[index] for one in done] for index in range(3))
            row = {
                "clients": clients, "side": side + " streamed" * streamed, "round": number, "seconds": seconds,
                "audio_s": sum(num_samples) / 24_000 or math.nan,
                "first_audio_s": statistics.median(firsts) if streamed else seconds,
                "request_s": statistics.median(ends),
            }  # fmt: skip
            if number >= 0:
                rounds.append(row)
                account = energy[clients, row["side"]]
                account.add(used, {"audio_s": sum(num_samples) / 24_000})
                # Of the rounds so far.
                row[PER_MINUTE] = account.figures().get(PER_MINUTE)
            _say(json.dumps(row))
            memory["device"] = _device_gib(0, ())
            memory[side] = _device_gib(os.getpid() if side == "omni" else others[side].pid, others.values())
            (options.output_dir / "qwen3_tts.json").write_text(json.dumps({"rounds": rounds, "memory_gib": memory}))
    if llm is not None:
        await llm.close()
    for other in others.values():
        other.close()
    summary = "\n".join(_lines(rounds, memory)) + "\n"
    (options.output_dir / "qwen3_tts.txt").write_text(summary)
    sys.stdout.write(summary)


def _neighbours(folder: Path, options: argparse.Namespace) -> Iterable[tuple[str, list[str], str]]:
    asked = [str(folder), str(options.frames)]
    if options.publisher:
        yield PUBLISHER, [options.publisher_python, __file__, WORKER, *asked], options.publisher
    for batches in options.batches if options.vllm_omni else ():
        script = str(Path(__file__).with_name("qwen3_tts_vllm_omni.py"))
        name = f"vllm-omni-{batches}"
        own = ["--batches", str(batches), "--runner", options.runner]
        yield name, [sys.executable, script, *asked, *own], options.vllm_omni


def _lines(rounds: list[dict[str, Any]], memory: dict[str, float]) -> Iterable[str]:
    yield "clients  side                  round's s            first audio s        RTF    audio per s  J/min"
    for (clients, side), group in itertools.groupby(
        sorted(rounds, key=lambda row: (row["clients"], row["side"])), key=lambda row: (row["clients"], row["side"])
    ):
        rows = list(group)
        seconds = [row["seconds"] for row in rows]
        firsts = [row["first_audio_s"] for row in rows]
        rtf = statistics.median(row["request_s"] * clients / row["audio_s"] for row in rows)
        rate = statistics.median(row["audio_s"] / row["seconds"] for row in rows)
        joules = rows[-1].get("energy_per_audio_minute_j")
        spent = "" if joules is None else f"  {joules:.0f}"
        yield f"{clients:7}  {side:20}  {_range(seconds)}  {_range(firsts)}  {rtf:.3f}  {rate:.2f}{spent}"
    yield "memory_gib " + ", ".join(f"{side} {size:.2f}" for side, size in memory.items())


def _range(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} [{min(values):.3f}, {max(values):.3f}]"


async def _speak(llm: Any, text: str, *, streamed: bool) -> tuple[float, float, int]:
    """Return the seconds to the first audio and to the end, and the number of samples."""
    from omni_cli.requests.contents import SpeechOptions
    from omni_cli.requests.events import AudioChunk
    from omni_cli.requests.outputs import AudioOutput, GenerateRequest

    began_s, first_s, num_samples = time.perf_counter(), None, 0
    request = GenerateRequest(text, text, speech=SpeechOptions(speaker="vivian", stream_audio=streamed))
    async for event in llm.generate(request):
        if isinstance(event, AudioChunk):
            first_s = first_s or time.perf_counter() - began_s
            num_samples += event.samples.size
        last = event
    if last.error is not None:
        raise last.error
    end_s = time.perf_counter() - began_s
    whole = sum(len(output.samples) for output in last.outputs if isinstance(output, AudioOutput))
    return first_s or end_s, end_s, num_samples or whole


class Neighbour:
    """Another implementation in a process of its own, which answers a list of texts at once."""

    def __init__(self, name: str, command: Sequence[str], paths: str) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
            env=_environment(name, paths),
        )  # fmt: skip
        self.pid = self._process.pid

    def wait_until_ready(self, seconds: float) -> bool:
        """Return False if it has ended, or gives no sign for so long."""
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], max(seconds, 1.0))
        return bool(readable) and bool(self._process.stdout.readline())

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise EOFError
        return json.loads(line)

    def speak(self, texts: list[str], streamed: bool) -> list[tuple[float, float, int]]:
        """Return what `_speak` does, of each text."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"texts": texts, "streamed": streamed}) + "\n")
        self._process.stdin.flush()
        return [(first_s or end_s, end_s, num_samples) for first_s, end_s, num_samples in self._read()]

    def close(self) -> None:
        """End it; whoever does not end by itself is killed, with all of its processes."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def _environment(name: str, paths: str) -> dict[str, str]:
    """Return the environment that this process was given, with other packages and caches of its own."""
    caches = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")) + f"-{name}"
    own = {"VLLM_CACHE_ROOT": caches, "TRITON_CACHE_DIR": f"{caches}/triton", "XDG_CACHE_HOME": caches}
    return {**ENVIRONMENT, **own, "TORCHINDUCTOR_CACHE_DIR": f"{caches}/inductor", "PYTHONPATH": paths}


def work(folder: str, num_frames: int) -> None:
    """Serve the publisher's package: a list of texts per line, answered by the numbers of samples."""
    import importlib.machinery
    import types

    import torch
    import transformers  # noqa: F401 - it looks for the packages below, which are not needed

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the package prints
    missing = ["torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi", "sox", "onnxruntime"]
    # For recordings, which are not given.
    missing += [name for name in ("soundfile", "librosa", "librosa.filters") if not _is_installed(name)]
    for name in missing:
        module = sys.modules[name] = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.mel = None  # type: ignore[attr-defined]
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
    from qwen_tts import Qwen3TTSModel

    place = {"device_map": "cuda:0", "dtype": torch.bfloat16} if torch.cuda.is_available() else {"dtype": torch.float32}
    model = Qwen3TTSModel.from_pretrained(folder, **place)
    answers.write("null\n")
    answers.flush()
    for line in sys.stdin:
        texts = json.loads(line)["texts"]
        began_s = time.perf_counter()
        asked = {"speaker": ["vivian"] * len(texts), "language": ["english"] * len(texts)}
        waves, _ = model.generate_custom_voice(text=texts, **asked, max_new_tokens=num_frames + 1)
        seconds = time.perf_counter() - began_s
        answers.write(json.dumps([(None, seconds, len(wave)) for wave in waves]) + "\n")
        answers.flush()


def _is_installed(name: str) -> bool:
    import importlib.util

    return name.partition(".")[0] not in sys.modules and importlib.util.find_spec(name.partition(".")[0]) is not None


def _device_gib(pid: int, others: Iterable[Neighbour]) -> float:
    """Return what a process and its descendants hold of the device, without those of other sides; of 0, all."""
    query = "--query-compute-apps=pid,used_memory" if pid else "--query-gpu=index,memory.used"
    try:
        asked = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
        lines = subprocess.run(asked, capture_output=True, text=True).stdout.splitlines()
    except FileNotFoundError:
        return 0.0
    sides = {other.pid for other in others} | {os.getpid()}
    held = (tuple(map(int, line.split(","))) for line in lines if line.replace(",", "").replace(" ", "").isdigit())
    return sum(mib for holder, mib in held if not pid or _side_of(holder, sides) == pid) / 1024


def _side_of(pid: int, sides: set[int]) -> int:
    """Return the nearest of `sides` among a process and its ancestors, or 0."""
    while pid > 0 and pid not in sides:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            return 0
    return pid


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output-dir", type=Path, required=True)
    parser.add_argument("--folder", type=Path, help="of the checkpoint")
    parser.add_argument("--publisher", metavar="PATHS", help="folders of packages with qwen_tts")
    parser.add_argument("--publisher-python", default=sys.executable, help="the Python that runs them")
    parser.add_argument("--publisher-clients", type=int, default=32, help="the package runs no larger rounds")
    parser.add_argument("--vllm-omni", metavar="PATHS", help="folders of packages with vllm-omni")
    parser.add_argument("--batches", type=int, nargs="+", default=[8], help="of vllm-omni's decoder, a side for each")
    parser.add_argument("--runner", choices=["v1", "v2"], default="v2", help="vLLM's model runner, of vllm-omni")
    parser.add_argument("--without-omni", action="store_true", help="only the others")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try the script")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--frames", type=int, default=125)
    parser.add_argument("--rounds", type=int, default=3, help="after one that warms up")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as of `omni generate`")
    options = parser.parse_args()
    options.output_dir.mkdir(parents=True, exist_ok=True)
    return options


if __name__ == "__main__":
    if sys.argv[1:2] == [WORKER]:
        work(sys.argv[2], int(sys.argv[3]))
    else:
        sys.exit(main())
