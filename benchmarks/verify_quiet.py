"""Runs of `omni verify` where nothing is wrong, and with planted faults, on the instruction sets of other processors.

    python benchmarks/verify_quiet.py RESULTS --model FOLDER [--transcriber FOLDER] [--runs 20] [--only TEXT ...]
    python benchmarks/verify_quiet.py RESULTS --summary

Each setting hides instruction sets from ATen, oneDNN and vLLM, and gives them threads. No quiet run may find a
difference: these have requests of their own, except those that need a sound or an image. Each fault, planted by
`tests/support/planted_outputs.py`, must be found. RESULTS has a line per run; runs that are there already count, so
that they can be spread over days. `--only` picks runs by parts of their names. Needs a processor with AVX-512 for all.
`--summary` runs nothing, and writes a table of what RESULTS has.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from omni_cli.core.version import read_commit

PLANTED = Path(__file__).parents[1] / "tests" / "support" / "planted_outputs.py"
OTHER_PROFILES = (
    "tiny-qwen3-omni", "tiny-glm-image", "tiny-audio", "tiny-video", "tiny-vibevoice", "tiny-higgs-audio", "tiny-edit",
)  # fmt: skip
PIPELINES = {"tiny-image", "tiny-glm-image", "tiny-audio", "tiny-video", "tiny-edit"}
MODEL_FAULTS = ("weight", "rope base", "neighbour", "lost text", "seed", "stop string", "usage")
FAULTS = {
    "tiny-omni": ("thinker weight", "talker weight", "fewer steps", "lost audio", "positions after an image",
                  "cache without images"),
    "tiny-image": ("vae dtype",),
    "tiny-csm": ("weight@backbone",),
}  # fmt: skip
# vLLM asks torch what the processor has, which no variable hides.
SITE = """
import os, runpy, sys

def hide(event, args):
    if event == "import" and args[0] == "vllm.platforms.cpu":
        import torch
        for name in ("avx512", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_fp16"):
            if hasattr(torch.cpu, f"_is_{name}_supported"):
                setattr(torch.cpu, f"_is_{name}_supported", lambda: False)

if "QUIET_HIDES_AVX512" in os.environ:
    sys.addaudithook(hide)
if "PLANTED_OUTPUT" in os.environ:
    runpy.run_path(os.environ["QUIET_PLANTED"])
"""
HIDDEN = {"QUIET_HIDES_AVX512": "1"}
SETS = {
    "default": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", **HIDDEN},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", **HIDDEN},
    "avx512": {"ATEN_CPU_CAPABILITY": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
}
TEXTS = (
    "hello", "Write three short sentences about the sea.", "The capital of France is", "Count from one to ten.",
    "Why is the sky blue?", "Name a fruit that is red.", "Tell me a joke about cats.", "2 + 2 =", "Once upon a time",
    "What is a processor?", "Translate 'good morning' into German.", "List the days of the week.", "Who wrote Hamlet?",
    "A recipe for bread:", "How do birds fly?", "def add(a, b):", "Describe a red lighthouse at dusk.", "The moon is",
    "Explain rounding to a child.", "Two boats on a calm sea", "What rhymes with light?", "Goodbye.",
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """A run of `omni verify`; `requests` are prompts, if not its own."""

    name: str
    arguments: tuple[str, ...]
    environment: dict[str, str]
    requests: tuple[str, ...] = ()


def verify(run: Run) -> str:
    """Return the verdicts of a run, `20 equal, 1 near tie`, its differences, and the numbers of its references."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "sitecustomize.py").write_text(SITE)
        arguments = run.arguments
        if run.requests:
            lines = [
                {"request_id": str(number), "prompt": prompt, "seed": number}
                for number, prompt in enumerate(run.requests)
            ]
            if not PIPELINES.intersection(arguments):
                lines = [{**line, "sampling": {"max_tokens": 24}} for line in lines]
            path = Path(folder, "requests.jsonl")
            path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
            arguments += ("--requests", str(path))
        environment = {"PYTHONPATH": folder, "QUIET_PLANTED": str(PLANTED), **run.environment}
        command = [sys.executable, "-m", "omni_cli", "verify", *arguments, "--json", "-q"]
        ended = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    if ended.returncode not in (0, 5):
        return f"exit code {ended.returncode} {' '.join(ended.stderr.split())[:100]}"
    rows = json.loads(ended.stdout)["rows"]
    counts = collections.Counter(row["verdict"] for row in rows)
    parts = [", ".join(f"{counts[name]} {name}" for name in sorted(counts))]
    parts += [f"different {row['check']} {row['stage']}" for row in rows if row["verdict"] == "different"]
    parts += [
        f"{row['stage']} mean {row['logprob_diff']['mean']:.1e} of {row['noise']['mean']:.1e}"
        for row in rows
        if row["check"] == "reference" and row.get("logprob_diff") and row.get("noise")
    ]
    return "; ".join(parts)


def list_runs(model: Path | None, transcriber: Path | None, num_runs: int) -> Iterator[Run]:
    """List the runs of all settings, the quiet ones in rounds so that an early end leaves some of each."""
    subjects: dict[str, tuple[str, ...]] = {name: ("--profile", name) for name in (*FAULTS, *OTHER_PROFILES)}
    faults = dict(FAULTS)
    for dtype in ("float32", "bfloat16") if model else ():
        subjects[f"{model} {dtype}"] = ("--model", str(model), "--set", f"dtype={dtype}")
    if model:
        faults[f"{model} float32"] = MODEL_FAULTS
    if transcriber:
        subjects[str(transcriber)] = ("--model", str(transcriber))
        faults[str(transcriber)] = ("weight@transcriber",)
    has_avx512 = "avx512f" in Path("/proc/cpuinfo").read_text()

    def in_settings(subject: str, what: str, run: Run) -> Iterator[Run]:
        for name, variables in SETS.items():
            for threads in (2, 1) if name != "avx512" or has_avx512 else ():
                # Inductor takes code that it has kept from another setting, which then may not compile.
                kept = {"TORCHINDUCTOR_CACHE_DIR": str(Path(tempfile.gettempdir(), f"verify-quiet-{name}"))}
                environment = {**run.environment, **variables, **kept, "OMP_NUM_THREADS": str(threads)}
                label = Path(subject).name
                yield replace(run, name=f"{name}, {threads} threads, {label}, {what}", environment=environment)

    for number in range(num_runs):
        for subject, arguments in subjects.items():
            prompts = tuple(TEXTS[(number + step) % len(TEXTS)] for step in range(0, 9, 3))
            own = number == 0 or subject in (str(transcriber), "tiny-edit")
            yield from in_settings(subject, f"quiet {number}", Run("", arguments, {}, () if own else prompts))
        for subject, names in faults.items() if number == 0 else ():
            for fault in names:
                planted, _, stage = fault.partition("@")
                environment = {"PLANTED_OUTPUT": planted, **({"PLANTED_STAGE": stage} if stage else {})}
                requests = TEXTS[:3] if subject == "tiny-omni" and "image" not in fault else ()
                yield from in_settings(subject, f"planted {fault}", Run("", subjects[subject], environment, requests))


@dataclass
class Subject:
    """The runs of a subject in a setting; `ratios` are the largest of each stage, of the mean to the noise's."""

    runs: int = 0
    different: int = 0
    failed: int = 0
    ratios: dict[str, float] = field(default_factory=dict)
    faults: dict[str, bool] = field(default_factory=dict)
    commits: collections.Counter[str] = field(default_factory=collections.Counter)

    def add(self, what: str, found: str, commit: str) -> None:
        is_different, planted = " different" in found, what.partition("planted ")[2]
        self.commits[commit] += 1
        if planted:
            self.faults[planted] = is_different
            return
        self.runs += 1
        self.different += is_different
        self.failed += found.startswith("exit code")
        for stage, mean, noise in re.findall(r"(\S+) mean (\S+) of ([^\s;]+)", found):
            self.ratios[stage] = max(self.ratios.get(stage, 0.0), float(mean) / float(noise))

    def cells(self) -> list[str]:
        ratios = ", ".join(f"{stage} {ratio:.2f}" for stage, ratio in self.ratios.items())
        missed = [name for name, is_found in self.faults.items() if not is_found]
        faults = ", ".join(name for name, is_found in self.faults.items() if is_found)
        faults += f"; missed: {', '.join(missed)}" if missed else ""
        commits = ", ".join(f"{commit} ({count})" for commit, count in self.commits.items())
        return [str(self.runs), str(self.different), str(self.failed), ratios or "-", faults or "-", commits]


def summarise(lines: list[str]) -> str:
    """Return a Markdown table with a row per setting and subject; lines of before have no setting."""
    subjects: dict[tuple[str, str], Subject] = {}
    for line in lines:
        name, _, rest = line.partition(": ")
        found, _, origin = rest.rpartition(" (")
        setting, _, run = name.rpartition(" threads, ")
        subject, _, what = run.partition(", ")
        key = f"{setting} threads" if setting else "as it is", subject
        subjects.setdefault(key, Subject()).add(what, found, origin.rstrip(")").split(", ")[1])
    heads = ("setting", "subject", "quiet runs", "different", "failed", "largest mean / noise", "faults found",
             "commits (runs)")  # fmt: skip
    rows = [heads, ["---"] * len(heads), *([*key, *item.cells()] for key, item in subjects.items())]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--transcriber", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--summary", action="store_true")
    options = parser.parse_args()
    if options.summary:
        sys.stdout.write(summarise(options.results.read_text().splitlines()))
        return

    done = (
        {line.split(": ")[0] for line in options.results.read_text().splitlines()} if options.results.exists() else ()
    )
    commit = (read_commit() or "unknown")[:8]
    for run in list_runs(options.model, options.transcriber, options.runs):
        if run.name in done or not all(part in run.name for part in options.only):
            continue
        line = f"{run.name}: {verify(run)} ({datetime.now(UTC):%Y-%m-%d}, {commit})"
        with options.results.open("a") as file:
            file.write(f"{line}\n")
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
