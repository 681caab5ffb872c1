"""One process's share of the cases of a target."""

from __future__ import annotations

import collections
import faulthandler
import importlib
import random
import resource
import signal
import time
import traceback
from pathlib import Path
from typing import Any

BATCH = 250
CASE_CPU_S = 20  # of processor time, whatever else the machine does; a case takes milliseconds
HANG_S = 600  # of a batch that stalls without using the processor
MEMORY_EVERY = 50
MAX_FINDINGS = 20
MAX_GROWTH_BYTES = 2**30


def run_share(target: str, first_batch: int, step: int, num_cases: int, seed: int, seconds: float) -> dict[str, Any]:
    """Every `step`th batch from `first_batch`; a batch has its own generator, so that any can be run again alone.

    Ends after `num_cases`, or with the batch in which `seconds` are over.
    """
    begun_s = time.monotonic()
    module = importlib.import_module(f"fuzz.{target}")
    check_memory = getattr(module, "check_memory", module.check)
    ends: collections.Counter[str] = collections.Counter()
    findings: list[dict[str, Any]] = []
    slowest_s, slowest = 0.0, ""
    signal.signal(signal.SIGPROF, _give_up)
    signal.signal(signal.SIGALRM, _give_up)
    for number, case in zip(range(MEMORY_EVERY), module.cases(random.Random(seed)), strict=False):
        if number:
            _end_of(module.check, case, findings)
    faulthandler.enable()
    _bound_memory()
    resident_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    batch = first_batch
    while sum(ends.values()) < num_cases and time.monotonic() - begun_s < seconds:
        # No thread watches: tracing memory while one begins or ends crashes Python 3.11.
        signal.alarm(HANG_S)
        cases = module.cases(random.Random(f"{seed}:{batch}"))
        for number in range(min(BATCH, num_cases - sum(ends.values()))):
            case = next(cases)
            begin_s = time.process_time()  # of this process: others keep the machine busy
            check = check_memory if number % MEMORY_EVERY == 0 else module.check
            ends[_end_of(check, case, findings)] += 1
            took_s = time.process_time() - begin_s
            if took_s > slowest_s:
                slowest_s, slowest = took_s, repr(case)[:200]
        batch += step
    signal.alarm(0)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    growth = (usage.ru_maxrss - resident_kib) * 1024
    return {
        "ends": ends,
        "findings": findings,
        "slowest": (slowest_s, slowest),
        "growth": growth,
        "peak": usage.ru_maxrss * 1024,
    }


def _bound_memory() -> None:
    """Limit memory: more than `MAX_GROWTH_BYTES` from here on is a `MemoryError`, which is a finding."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MAX_GROWTH_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _end_of(check: Any, case: Any, findings: list[dict[str, Any]]) -> str:
    signal.setitimer(signal.ITIMER_PROF, CASE_CPU_S)
    try:
        return check(case)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
        if len(findings) < MAX_FINDINGS:
            text = "".join(traceback.format_exception(error))
            findings.append({"case": repr(case)[:4000], "error": repr(error)[:500], "traceback": text[-3000:]})
        return "finding"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _give_up(*_: object) -> None:
    raise TimeoutError(f"a case took {CASE_CPU_S} s of processor time, or a batch {HANG_S} s")
