"""Freed memory stays with the process: counted in page faults, which no other program on the machine can change."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


SCRIPT = """
import ctypes, resource, sys
from omni_cli.engine.process.preload import keep_freed_memory

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]

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
