"""Seconds until `omni generate` refuses a wrong request: whole processes, from the command line to the exit code.

Median and maximum of the wall time, and the median of the processor time, which a busy machine changes less.

python benchmarks/refusal_times.py [--repeats 5]
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from fractions import Fraction
from pathlib import Path

import numpy as np
from PIL import Image

from omni_cli.requests.video_encoding import encode_video

REQUESTS = {
    "wrong size": ["-p", "tiny-image", "--width", "65", "a cat"],
    "wrong number of frames": ["-p", "tiny-video", "--num-frames", "6", "a cat"],
    "the pipeline's own check": ["-p", "tiny-video", "--height", "40", "a cat"],
    "no prompt": ["-p", "tiny-image"],
    "excess input": ["-p", "tiny-video", "--image", "good.png", "a cat"],
    "broken image": ["-p", "tiny-edit", "--image", "cut.png", "a cat"],
    "unknown argument": ["-p", "tiny-image", "--arg", "foo=1", "a cat"],
    "frame rate 1/0": ["-p", "tiny-video", "--fps", "1/0", "a cat"],
    "frame rate 1e9": ["-p", "tiny-video", "--fps", "1e9", "a cat"],
    "length of a list": ["-p", "tiny-edit", "--arg", "sigmas=[]", "a cat"],
    # More words than these do not fit into a command line.
    "50,000 --arg": ["-p", "tiny-image", *(word for n in range(50_000) for word in ("--arg", f"a{n}=1")), "a cat"],
    "100,000 arguments in a line": ["-p", "tiny-image", "--requests", "lines.jsonl"],
    "mask of another size": ["--model", "inpaint", "--image", "good.png", "--mask", "small.png", "a cat"],
    "video without frames": ["--model", "v2v", "--video", "empty.mp4", "a cat"],
    "truncated video": ["--model", "v2v", "--video", "cut.mp4", "a cat"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder)
        before, lines = set(folder.iterdir()), []
        for title, words in REQUESTS.items():
            seconds: list[float] = []
            processor_s: list[float] = []
            for _ in range(repeats):
                began, used = time.perf_counter(), _processor_s()
                ended = subprocess.run(
                    [sys.executable, "-m", "omni_cli", "generate", *words],
                    cwd=folder, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
                )  # fmt: skip
                seconds.append(time.perf_counter() - began)
                processor_s.append(_processor_s() - used)
            line = next(line for line in ended.stderr.splitlines() if line.startswith("error:"))
            is_clean = ended.returncode == 2 and ended.stderr.count("error:") == 1 and set(folder.iterdir()) == before
            verdict = "" if is_clean else f"  NOT CLEAN: exit code {ended.returncode}"
            times = f"{statistics.median(seconds):5.2f} s  max {max(seconds):5.2f} s"
            times += f"  processor {statistics.median(processor_s):5.2f} s"
            lines.append(f"{title:28} {times}  {line[:90]}{verdict}")
        sys.stdout.write("\n".join(lines) + "\n")


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def write_files(folder: Path) -> None:
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(folder / "good.png")
    Image.new("RGB", (32, 64)).save(folder / "small.png")
    (folder / "cut.png").write_bytes((folder / "good.png").read_bytes()[:2000])
    arguments = {f"a{number}": 1 for number in range(100_000)}
    (folder / "lines.jsonl").write_text(json.dumps({"prompt": "a cat", "arg": arguments}))
    frames = np.zeros((9, 32, 32, 3), np.uint8)
    video = encode_video(iter([frames]), len(frames), Fraction(8)).content
    (folder / "cut.mp4").write_bytes(video[: len(video) // 2])
    (folder / "empty.mp4").write_bytes(random.Random(0).randbytes(100))
    for name, pipeline in (("inpaint", "StableDiffusionInpaintPipeline"), ("v2v", "WanVideoToVideoPipeline")):
        (folder / name).mkdir()
        (folder / name / "model_index.json").write_text(f'{{"_class_name": "{pipeline}"}}')


if __name__ == "__main__":
    main()
