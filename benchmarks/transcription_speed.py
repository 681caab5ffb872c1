"""The time of long recordings as MP3 with a Whisper: `omni serve` against transformers' long form, and the memory.

    python benchmarks/transcription_speed.py --model DIR [--minutes 60] [--rounds 3] [--at-once 1]    # needs espeak-ng

Both hear one recording, and four at once, interleaved on the same processor; transformers, in this process, hears the
four as one batch, with which omni is compared, and one after another, as its pipeline does by default. Each side
decodes the MP3 itself, and both have loaded their model. The texts must be the same. The memory is the PSS of all
processes of the server, its highest in a request less that of a recording of a minute. The processor time of both sides
is printed beside the clock's, which other programs on the machine lengthen. The exit code is 1 if one recording is less
than 1.5 times as fast, four less than 2.5, more than 300 MiB are added, or texts differ.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

# Scripts have their own folder on the path, and omni_cli may not be installed.
sys.path.insert(1, str(Path(__file__).resolve().parent.parent))

from omni_cli.core.compat.libraries import prepare_libraries  # isort: skip

prepare_libraries()

import psutil
from common import interleaved, machine, ratio_of_medians
from serve_common import TRANSCRIPTIONS, Server, form
from spoken_recordings import HOUR, RATE, to_mp3
from transformers import WhisperForConditionalGeneration, WhisperProcessor

from omni_cli.requests.encoding import resample
from omni_cli.requests.media.reading import load_speech

NUM_FILES = 4
AIMS = {1: 1.5, NUM_FILES: 2.5}
MAX_ADDED_MIB = 300.0
OMNI, BATCH, IN_TURN = "omni", "transformers", "transformers one after another"


class LongForm:
    """transformers' long form."""

    def __init__(self, folder: Path) -> None:
        self._processor: Any = WhisperProcessor.from_pretrained(folder)
        self._model: Any = WhisperForConditionalGeneration.from_pretrained(folder).eval()

    def hear(self, paths: Sequence[Path]) -> list[str]:
        sounds = [resample(*load_speech(path, print), RATE) for path in paths]
        inputs = self._processor(
            sounds, sampling_rate=RATE, return_tensors="pt", return_attention_mask=True, truncation=False,
            padding="longest",
        )  # fmt: skip
        made = self._model.generate(**inputs, return_timestamps=True, return_segments=True)["segments"]
        tokens = [[token for part in parts for token in part["tokens"].tolist()] for parts in made]
        return [self._processor.tokenizer.decode(ids, skip_special_tokens=True).strip() for ids in tokens]


def hear_with_omni(server: Server, paths: Sequence[Path]) -> list[str]:
    with ThreadPoolExecutor(len(paths)) as threads:
        answers = list(threads.map(lambda path: server.post(TRANSCRIPTIONS, form(path.read_bytes())), paths))
    if failed := [body for status, body in answers if status != 200]:
        raise SystemExit(f"the server answered: {failed[0].decode()}")
    return [json.loads(body)["text"].strip() for _, body in answers]


@contextmanager
def peak_of_memory(server: Server) -> Iterator[list[float]]:
    """A list with the highest PSS of all processes in MiB, once the context has ended."""
    peak, has_ended = [0.0], threading.Event()

    def watch() -> None:
        while not has_ended.wait(0.5):
            found = 0
            for process in server._tree():
                try:
                    found += process.memory_full_info().pss
                except psutil.Error:  # it has ended
                    continue
            peak[0] = max(peak[0], found / 2**20)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        has_ended.set()
        thread.join()


def processor_s(server: Server, side: str) -> float:
    """Return the processor time that a side has used so far."""
    processes = server._tree() if side == OMNI else [psutil.Process()]
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--at-once", type=int, choices=AIMS, help="only so many recordings; default: one, then four")
    options = parser.parse_args()
    sys.stdout.write(f"{machine()}\n")
    is_good = True
    aims = {count: aim for count, aim in AIMS.items() if options.at_once in (None, count)}
    with tempfile.TemporaryDirectory() as temporary, Server("--model", str(options.model)) as server:
        minute, *longs = [
            to_mp3(replace(HOUR, name=f"{number}", minutes=minutes, first=7 * number).make(Path(temporary))[0])
            for number, minutes in enumerate([1.0, *[options.minutes] * max(aims)])
        ]
        reference = LongForm(options.model)
        reference.hear([minute])
        with peak_of_memory(server) as of_minute:
            hear_with_omni(server, [minute])
        with peak_of_memory(server) as of_long:
            hear_with_omni(server, longs[:1])
        added = of_long[0] - of_minute[0]
        is_good &= added <= MAX_ADDED_MIB
        sys.stdout.write(
            f"memory: {of_minute[0]:.0f} MiB with a minute, {added:.0f} MiB more with {options.minutes:g}\n"
        )
        for count, aim in aims.items():
            sides = [OMNI, BATCH] if count == 1 else [OMNI, BATCH, IN_TURN]
            times_s, used_s = ({side: list[float]() for side in sides} for _ in range(2))
            texts: dict[str, list[str]] = {}
            for _, side in interleaved(sides, options.rounds):
                began_s, used_before_s = time.monotonic(), processor_s(server, side)
                files = longs[:count]
                if side == OMNI:
                    texts[side] = hear_with_omni(server, files)
                else:
                    parts = [files] if side == BATCH else [[file] for file in files]
                    texts[side] = [text for part in parts for text in reference.hear(part)]
                times_s[side].append(time.monotonic() - began_s)
                used_s[side].append(processor_s(server, side) - used_before_s)
            ratio = ratio_of_medians(times_s[BATCH], times_s[OMNI])
            is_same = texts[OMNI] == texts[BATCH]
            is_good &= ratio.value >= aim and is_same
            used = {side: f"processor {min(each):.0f} to {max(each):.0f}" for side, each in used_s.items()}
            seconds = ", ".join(
                f"{side} {min(each):.0f} to {max(each):.0f} s ({used[side]})" for side, each in times_s.items()
            )
            verdict = "same texts" if is_same else "TEXTS DIFFER"
            sys.stdout.write(f"{count} of {options.minutes:g} min: {ratio} times as fast ({seconds}), {verdict}\n")
            sys.stdout.flush()
    return int(not is_good)


if __name__ == "__main__":
    sys.exit(main())
