"""A start's seconds by what it does: events of the engine and lines of its log, each with its time.

    PYTHONPATH=. python benchmarks/gpu/start_budget.py FOLDER [--profile qwen2.5-omni-7b] [--all]

Starts the profile with the model of FOLDER (`omni_checkpoint.py` writes one) in a process of its own and ends it when
it is ready. The first start compiles; a second one has its caches. Lines that libraries write are kept if they name a
part of a start, with `--all` every line.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import subprocess
import sys
import time

# Of the lines of a start with `-v`.
NAMED = re.compile(
    r"(?i)took|loading|ready|captur|compil|cache hit|init engine|kv cache|weights|initializ|import|backend|warm|error"
    r"|event|mps|profil|autotun"
)
NOISE = re.compile(r"(?i)deprecat|non-default args|failed to load|register_constant|torchao|unrecognized")
GIB = 2**30


def main() -> int:
    options = _options()
    if options.child:
        asyncio.run(_start(options.folder, options.profile))
        return 0
    began_s = time.perf_counter()
    command = [sys.executable, __file__, "--child", options.folder, "--profile", options.profile]
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", bufsize=1
    )
    assert child.stdout is not None
    for line in child.stdout:
        if options.all or (NAMED.search(line) and not NOISE.search(line)):
            sys.stdout.write(f"{time.perf_counter() - began_s:7.2f} {line.rstrip()[:230]}\n")
            sys.stdout.flush()
    return child.wait()


async def _start(folder: str, profile: str) -> None:
    began_s = time.perf_counter()

    def say(event: str) -> None:
        sys.stderr.write(f"EVENT {time.perf_counter() - began_s:7.2f} {event}\n")
        sys.stderr.flush()

    from omni_cli.config.loader import load_profile
    from omni_cli.engine.omni_llm import OmniLLM

    say("imported")
    llm = OmniLLM(load_profile(profile, [], model=folder), verbose=True)
    say("profile read")

    def note(event: object) -> None:
        info = getattr(event, "info", None)
        line = f"{type(event).__name__} {getattr(event, 'name', '')}"
        if info is not None:
            gib = ", ".join(f"{name} {num_bytes / GIB:.2f}" for name, num_bytes in info.load_memory_bytes.items())
            line += f" ready, load_s {info.load_s:.2f}, GiB: {gib}"
        say(line)

    await llm.start(note)
    say("ready")
    for info in llm.stages:
        counters = {name: round(value, 2) for name, value in info.execution_counters.items() if _is_of_start(name)}
        say(f"{info.name} counters {counters}")
    await llm.close()
    say("closed")


def _is_of_start(name: str) -> bool:
    return name.endswith("_s") or "graph" in name


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="of the checkpoint")
    parser.add_argument("--profile", default="qwen2.5-omni-7b")
    parser.add_argument("--all", action="store_true", help="every line")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
