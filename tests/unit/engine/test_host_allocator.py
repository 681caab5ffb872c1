"""Freed memory stays with the process until it is returned: counted in pages, which no other program can change."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


LIBC = """
import ctypes, resource, sys
from pathlib import Path
from omni_cli.engine.process.host_allocator import keep_freed_memory, return_freed_memory

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
"""
SCRIPT = f"""{LIBC}
def run():
    for size in (3, 12, 24, 5):
        block = libc.malloc(size * 2**20)
        libc.memset(block, 1, size * 2**20)
        libc.free(block)

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

switched = keep_freed_memory() if sys.argv[1] == "keep" else None
run()
before = faults()
for _ in range(10):
    run()
print(switched, faults() - before)
"""


def faults_of(mode: str, **variables: str) -> tuple[str, int]:
    """Result of `keep_freed_memory`, and page faults of ten runs after the first."""
    environment = {name: value for name, value in os.environ.items() if "MALLOC" not in name} | variables
    command = [sys.executable, "-c", SCRIPT, mode]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    answer, faults = ended.stdout.split()
    return answer, int(faults)


def test_runs_after_the_first_take_no_pages_again() -> None:
    answer, faults = faults_of("keep")
    assert answer == "True"
    assert faults < 100
    # Premise: without the switch, memory is returned.
    assert faults_of("leave")[1] > 1000


def test_the_users_allocator_settings_are_kept() -> None:
    answer, faults = faults_of("keep", MALLOC_TRIM_THRESHOLD_="131072")
    assert answer == "False" and faults > 1000


HOLES = f"""{LIBC}
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

keep_freed_memory()
before = resident()
blocks = []
for _ in range(4000):
    blocks.append(libc.malloc(32000))
    libc.memset(blocks[-1], 1, 32000)
    libc.malloc(200)
for block in blocks:
    libc.free(block)
grown = resident() - before
return_freed_memory()
print(grown, resident() - before)
"""


def test_memory_freed_between_what_is_kept_is_returned() -> None:
    ended = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, text=True, check=True)
    grown, left = map(int, ended.stdout.split())
    assert grown > 50 << 20, "premise: it is kept"
    assert left < grown / 4
