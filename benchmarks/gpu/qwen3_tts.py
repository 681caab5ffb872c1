"""Qwen3-TTS at the 1.7B's sizes on one GPU, beside the publisher's package (qwen-tts 0.1.1), interleaved.

    PYTHONPATH=. python benchmarks/gpu/qwen3_tts.py -o DIR --publisher PATH [--clients 1 8 32] [--frames 125]
        [--rounds 3] [--folder FOLDER]

PATH is a folder of packages with `qwen_tts` and the transformers that it needs, put before the others in a process of
its own. Random bfloat16 weights whose end is never drawn, so that each request has `--frames` frames of 80 ms; both
sides sample as the checkpoint says. Both sides stay on the device and take their rounds one after another; all requests
of a round enter at once. omni runs them whole and streamed; the package runs a round as one batch and returns whole
audio. One round warms up.

RTF is a request's time over that of its audio, `audio_rate` the seconds of audio that a round makes in one second.
Medians over rounds, with the least and the greatest. `memory_gib` is what a side has taken of the device. `--tiny` runs
a small model anywhere, and is meaningless for speed.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

WORKER = "--worker"
GIB = 1 << 30
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
    from omni_checkpoint import TOKENIZER_SIZE, drawn_on_device
    from safetensors.torch import load_file, save_file

    from omni_cli.checkpoints.tiny import DecoderSizes
    from omni_cli.checkpoints.tiny_qwen3 import CodecSizes
    from omni_cli.checkpoints.tiny_speech import MimiSizes
    from omni_cli.models.qwen3_tts.tiny import Qwen3TTSSizes, qwen3_tts

    large = Qwen3TTSSizes(
        vocab_size=TOKENIZER_SIZE, text_hidden_size=2048, num_codes=2048, max_position_embeddings=32768,
        talker=DecoderSizes(2048, 6144, 28, 16, 8, 128), predictor=DecoderSizes(1024, 3072, 5, 16, 8, 128),
        code2wav=CodecSizes(1024, 3072, 8, 16, 16, 1536), codebook_dim=512, latent_dim=1024,
        encoder=MimiSizes(512, 2048, 8, 8, 64, 256, 2048), voice_channels=512,
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    draw = {} if tiny else {"draw": drawn_on_device}
    qwen3_tts("custom_voice", Qwen3TTSSizes() if tiny else large).write(folder, seed=0, **draw)
    (file,) = folder.glob("*.safetensors")
    state = load_file(file)
    end = json.loads((folder / "config.json").read_text())["talker_config"]["codec_eos_token_id"]
    state["talker.codec_head.weight"][end] = 0
    save_file({name: tensor.to(torch.bfloat16) for name, tensor in state.items()}, file, metadata={"format": "pt"})


def load_config(folder: Path, options: argparse.Namespace) -> Any:
    """Return the configuration of omni's side."""
    from omni_cli.config.loader import load_profile

    keys = [f"talker.sampling.max_tokens={options.frames + 1}", *options.set]
    return load_profile("tiny-qwen3-tts" if options.tiny else "qwen3-tts-1.7b", keys, model=str(folder))


async def _measure(folder: Path, options: argparse.Namespace) -> None:
    from omni_cli.engine.omni_llm import OmniLLM

    llm = OmniLLM(load_config(folder, options))
    free, began_s = _free_bytes(), time.perf_counter()
    await llm.start()
    memory = {"omni": (free - _free_bytes()) / GIB}
    _say(f"omni is ready after {time.perf_counter() - began_s:.1f} s, {memory['omni']:.2f} GiB")
    free, publisher = _free_bytes(), None
    if options.publisher:
        publisher = Publisher(folder, options)
        _say(f"the package is ready after {publisher.ready_s:.1f} s")
    rounds: list[dict[str, Any]] = []
    sides = ["omni", "omni streamed", *(["publisher"] if publisher else [])]
    numbers = itertools.count()
    for clients in options.clients:
        for number, side in itertools.product(range(-1, options.rounds), sides):
            texts = [f"{next(numbers)}. {TEXTS[index % len(TEXTS)]}" for index in range(clients)]
            began_s = time.perf_counter()
            if side == "publisher":
                first_s = ends_s = None
                num_samples = await asyncio.to_thread(publisher.speak, texts)
                memory["publisher"] = max(memory.get("publisher", 0.0), (free - _free_bytes()) / GIB)
            else:
                done = await asyncio.gather(*(_speak(llm, text, streamed=side != "omni") for text in texts))
                firsts, ends, num_samples = ([one[index] for one in done] for index in range(3))
                first_s, ends_s = statistics.median(firsts), statistics.median(ends)
            seconds = time.perf_counter() - began_s
            audio_s = sum(num_samples) / 24_000
            row = {
                "clients": clients, "side": side, "round": number, "seconds": seconds, "audio_s": audio_s,
                "first_audio_s": first_s if side == "omni streamed" else seconds, "request_s": ends_s or seconds,
            }  # fmt: skip
            _say(json.dumps(row))
            if number >= 0:
                rounds.append(row)
            (options.output_dir / "qwen3_tts.json").write_text(json.dumps({"rounds": rounds, "memory_gib": memory}))
    await llm.close()
    if publisher:
        publisher.close()
    summary = "\n".join(_lines(rounds, memory)) + "\n"
    (options.output_dir / "qwen3_tts.txt").write_text(summary)
    sys.stdout.write(summary)


def _lines(rounds: list[dict[str, Any]], memory: dict[str, float]) -> Iterable[str]:
    yield "clients  side            round's s            first audio s        RTF    audio per s"
    for (clients, side), group in itertools.groupby(
        sorted(rounds, key=lambda row: (row["clients"], row["side"])), key=lambda row: (row["clients"], row["side"])
    ):
        rows = list(group)
        seconds = [row["seconds"] for row in rows]
        firsts = [row["first_audio_s"] for row in rows]
        rtf = statistics.median(row["request_s"] * clients / row["audio_s"] for row in rows)
        rate = statistics.median(row["audio_s"] / row["seconds"] for row in rows)
        yield f"{clients:7}  {side:14}  {_range(seconds)}  {_range(firsts)}  {rtf:.3f}  {rate:.2f}"
    yield "memory_gib " + ", ".join(f"{side} {size:.2f}" for side, size in memory.items())


def _range(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} [{min(values):.3f}, {max(values):.3f}]"


async def _speak(llm: Any, text: str, *, streamed: bool) -> tuple[float, float, int]:
    """Return the seconds to the first audio and to the end, and the number of samples."""
    from omni_cli.requests.contents import SpeechOptions
    from omni_cli.requests.outputs import AudioChunk, AudioOutput, GenerateRequest

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


class Publisher:
    """The publisher's package in a process of its own, which runs a list of texts as one batch."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        began_s = time.perf_counter()
        self._process = subprocess.Popen(
            [options.publisher_python, __file__, WORKER, str(folder), str(options.frames)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"PYTHONPATH": str(options.publisher)},
        )  # fmt: skip
        self._read()
        self.ready_s = time.perf_counter() - began_s

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("the publisher's process has ended")
        return json.loads(line)

    def speak(self, texts: list[str]) -> list[int]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(texts) + "\n")
        self._process.stdin.flush()
        numbers: list[int] = self._read()
        return numbers

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


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
        texts = json.loads(line)
        asked = {"speaker": ["vivian"] * len(texts), "language": ["english"] * len(texts)}
        waves, _ = model.generate_custom_voice(text=texts, **asked, max_new_tokens=num_frames + 1)
        answers.write(json.dumps([len(wave) for wave in waves]) + "\n")
        answers.flush()


def _is_installed(name: str) -> bool:
    import importlib.util

    return name.partition(".")[0] not in sys.modules and importlib.util.find_spec(name.partition(".")[0]) is not None


def _free_bytes() -> int:
    import torch

    if not torch.cuda.is_available():
        return 0
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output-dir", type=Path, required=True)
    parser.add_argument("--folder", type=Path, help="of the checkpoint")
    parser.add_argument("--publisher", type=Path, help="a folder of packages with qwen_tts")
    parser.add_argument("--publisher-python", default=sys.executable, help="the Python that runs them")
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
