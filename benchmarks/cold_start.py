"""Time of `omni generate "hello"` from a cold start, interleaved with the smallest vLLM script.

    python benchmarks/cold_start.py [--rounds 5] [--profile tiny-omni] [--model DIR] [--set KEY=VALUE] [--json]

omni runs its default profile, tiny-omni: three stages on three engines, to text and a WAV file. The script loads the
thinker of the same checkpoint, in the profile's sizes and with CUDA graphs if it has them, and prints an answer, once
with vLLM's default, an engine core in a separate process, and once in one process, its fastest mode. Every run is a new
process; the checkpoint is built before, and one unmeasured run of each fills the page cache and vLLM's own caches.

If torchvision does not import next to a CPU build of torch (`omni_cli.core.compat.torchvision`), three lines before the
script work around that; the output mentions it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common import interleaved, machine, machine_line, ratio_of_medians

GOAL = 2.5
OMNI, VLLM, VLLM_IN_PROCESS = "omni generate", "vLLM", "vLLM, one process"

SCRIPT = """
from vllm import LLM, SamplingParams

if __name__ == "__main__":
    llm = LLM(**{arguments})
    print(llm.generate("hello", SamplingParams(temperature=0, max_tokens=64)))
"""

# The arguments of `LLM` for a profile's thinker, in a process of its own, so that this one stays small.
READ_PROFILE = """
import json, sys
from omni_cli.checkpoints.resolve import resolve_model
from omni_cli.config.loader import load_profile

profile = load_profile(sys.argv[1], sys.argv[3:], model=sys.argv[2] or None)
thinker = profile.stages[0]
print(json.dumps({
    "model": str(resolve_model(profile.model)), "dtype": profile.dtype, "max_model_len": thinker.max_model_len,
    "max_num_seqs": thinker.max_num_seqs, "kv_cache_memory_bytes": thinker.kv_cache_memory_bytes,
    "enforce_eager": thinker.cudagraph_mode == "none",
}))
"""

# On a CPU vLLM spawns its processes: each of them imports the script again, and this with it.
TORCHVISION_WORKAROUND = """
from omni_cli.core.compat.torchvision import ensure_torchvision_importable
ensure_torchvision_importable()
from omni_cli.backends.vllm.registry import resolve_in_process
resolve_in_process("Qwen2_5OmniModel")
"""


class RunFailedError(Exception):
    """A command that had to succeed failed; the message ends with the tail of its output."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", default="tiny-omni")
    parser.add_argument("--model", metavar="DIR", default="", help="the checkpoint, instead of the profile's")
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="a key of the profile")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        works_alone = _torchvision_imports()
        programs = _programs(arguments, Path(folder), works_alone)
        notes = [] if works_alone else ["torchvision does not import here by itself: vLLM ran with a workaround"]
        try:
            _run(programs[OMNI], Path(folder))
            _run(programs[VLLM_IN_PROCESS], Path(folder))
        except RunFailedError as error:
            sys.stderr.write(f"error: {error}\n")
            return 2
        try:
            _run(programs[VLLM], Path(folder))
        except RunFailedError as error:
            notes.append(f"vLLM's default mode does not run here and is omitted: {error}")
            del programs[VLLM]
        times = _measure(programs, arguments.rounds, Path(folder))
    return _report(times, notes, as_json=arguments.json)


def _torchvision_imports() -> bool:
    return subprocess.run([sys.executable, "-c", "import torchvision"], capture_output=True).returncode == 0


def _programs(
    arguments: argparse.Namespace, folder: Path, torchvision_imports: bool
) -> dict[str, tuple[list[str], dict[str, str]]]:
    """A command and its environment variables, for each side."""
    script = folder / "smallest.py"
    text = SCRIPT.format(arguments=_engine_arguments(arguments))
    script.write_text(text if torchvision_imports else TORCHVISION_WORKAROUND + text)
    installed = Path(sys.executable).parent / "omni"
    omni = [str(installed)] if installed.exists() else [sys.executable, "-m", "omni_cli"]
    model = ["--model", arguments.model] if arguments.model else []
    overrides = [part for each in arguments.set for part in ("--set", each)]
    vllm = [sys.executable, str(script)]
    return {
        OMNI: ([*omni, "generate", "hello", "--profile", arguments.profile, *model, *overrides], {}),
        VLLM: (vllm, {}),
        VLLM_IN_PROCESS: (vllm, {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}),
    }


def _engine_arguments(arguments: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, "-c", READ_PROFILE, arguments.profile, arguments.model, *arguments.set]
    made = subprocess.run(command, capture_output=True, text=True, env=_environment({}), check=False)
    if made.returncode:
        sys.exit(f"error: could not read the profile\n{made.stderr}")
    return json.loads(made.stdout.splitlines()[-1])


def _environment(given: dict[str, str]) -> dict[str, str]:
    """This process's environment and `given`; finds omni_cli even if it is not installed."""
    paths = [str(Path(__file__).resolve().parent.parent), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path), **given}


def _run(program: tuple[list[str], dict[str, str]], folder: Path) -> float:
    """Wall seconds of one run in an empty folder; it must succeed, print, and (omni) write a WAV file."""
    command, given = program
    with tempfile.TemporaryDirectory(dir=folder) as workplace:
        started_s = time.perf_counter()
        done = subprocess.run(command, cwd=workplace, env=_environment(given), capture_output=True, text=True)
        seconds = time.perf_counter() - started_s
        spoke = any(path.stat().st_size > 44 for path in Path(workplace).rglob("*.wav"))
    if done.returncode or not done.stdout.strip():
        tail = "\n".join((done.stderr or done.stdout).splitlines()[-5:])
        raise RunFailedError(f"{' '.join(command)} ended with status {done.returncode}\n{tail}")
    if "generate" in command and not spoke:
        raise RunFailedError(f"{' '.join(command)} wrote no audio")
    return seconds


def _measure(
    programs: dict[str, tuple[list[str], dict[str, str]]], rounds: int, folder: Path
) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {side: [] for side in programs}
    for turn, side in interleaved(list(programs), rounds):
        times[side].append(_run(programs[side], folder))
        sys.stderr.write(f"round {turn + 1}/{rounds}   {side}   {times[side][-1]:.2f} s\n")
    return times


def _report(times: dict[str, list[float]], notes: list[str], *, as_json: bool) -> int:
    """Print the result; return 1 if the goal is missed against any of the scripts."""
    ratios = {side: ratio_of_medians(times[OMNI], times[side]) for side in times if side != OMNI}
    missed = any(ratio.value > GOAL for ratio in ratios.values())
    if as_json:
        shown = {side: asdict(ratio) for side, ratio in ratios.items()}
        record = {"machine": machine(), "notes": notes, "goal": GOAL, "times_s": times, "ratios": shown}
        sys.stdout.write(json.dumps(record) + "\n")
        return int(missed)
    for side, seconds in times.items():
        sys.stdout.write(
            f"{side:18}median {statistics.median(seconds):6.2f} s   "
            f"range {min(seconds):.2f} s to {max(seconds):.2f} s   {len(seconds)} runs\n"
        )
    for side, ratio in ratios.items():
        verdict = "met" if ratio.value <= GOAL else "missed"
        sys.stdout.write(f"omni / {side}: {ratio}   goal: at most {GOAL}, {verdict}\n")
    for note in notes:
        sys.stdout.write(f"note: {note}\n")
    sys.stdout.write(machine_line() + "\n")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
