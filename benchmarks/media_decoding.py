"""Time that decoding in a process of its own adds to a medium, and the peak memory of such a process.

    python benchmarks/media_decoding.py [--rounds 40]

Each medium is decoded by a worker process and by the same decoder in this process, interleaved.
"""

from __future__ import annotations

import argparse
import io
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
from common import interleaved, machine_line
from PIL import Image

from omni_cli.requests.encoding import encode_wav
from omni_cli.requests.media.audio import decode_audio
from omni_cli.requests.media.images import decode_image
from omni_cli.requests.media.reading import MediaReader, in_memory

GOAL_MS = 10.0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    reader = MediaReader(lambda _note: None)
    media: dict[str, tuple[bytes, Callable[..., object], Callable[..., object]]] = {
        "JPEG of 1024x1024 pixels": (jpeg(1024), reader.image, decode_image),
        "WAV of 60 s, 48 kHz, mono": (wav(60), reader.audio, decode_audio),
    }
    is_met = True
    for name, (content, apart, here) in media.items():
        times: dict[str, list[float]] = {"apart": [], "here": []}
        for turn, side in interleaved(("apart", "here"), rounds + 1):
            began = time.perf_counter()
            if side == "apart":
                with in_memory(content) as file:
                    apart(file, "medium")
            else:
                here(io.BytesIO(content), "medium")
            if turn:
                times[side].append(1000 * (time.perf_counter() - began))
        added = statistics.median(a - b for a, b in zip(times["apart"], times["here"], strict=True))
        is_met &= added <= GOAL_MS
        sys.stdout.write(
            f"{name:26}   decoder {statistics.median(times['here']):6.2f} ms   "
            f"with its process {statistics.median(times['apart']):6.2f} ms   median difference {added:5.2f} ms\n"
        )
    (worker,) = psutil.Process().children()
    status = dict(line.split(":", 1) for line in Path(f"/proc/{worker.pid}/status").read_text().splitlines())
    sys.stdout.write(f"peak memory of the process {int(status['VmHWM'].split()[0]) / 1024:.0f} MiB\n")
    sys.stdout.write(f"goal: at most {GOAL_MS:g} ms, {'met' if is_met else 'missed'}\n{machine_line()}\n")
    return 0 if is_met else 1


def jpeg(side: int) -> bytes:
    small = np.random.default_rng(0).integers(0, 256, (side // 16, side // 16, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(small).resize((side, side)).save(file, "JPEG", quality=90)
    return file.getvalue()


def wav(seconds: int) -> bytes:
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, 48_000 * seconds).astype(np.float32)
    return encode_wav(noise, 48_000)


if __name__ == "__main__":
    sys.exit(main())
