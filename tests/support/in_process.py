"""The real `omni` in the test's own process, for what ends before anything is started: as `run_omni`, in a hundredth
of the time."""

from __future__ import annotations

import contextlib
import io
import tempfile
import time
from pathlib import Path

import psutil

from omni_cli.cli.app import run
from omni_cli.engine.process.fork_server import ForkServer
from omni_cli.requests.media.reading import media_pool
from support.omni_process import Ended, files_below


def run_here(folder: Path, *arguments: str) -> Ended:
    """Run a command that starts no engine, at most processes that decode media and read signatures.

    Its current folder and its temporary files are in `folder`.
    """
    out, err = io.StringIO(), io.StringIO()
    temporary = folder / "tmp"
    temporary.mkdir()
    before = psutil.Process().children(recursive=True)
    began = time.monotonic()
    tempfile.tempdir, usual = str(temporary), tempfile.tempdir
    try:
        with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(arguments)
    finally:
        # With a command's own process these end.
        media_pool().end_all()
        ForkServer.end_spare()
        tempfile.tempdir = usual
    seconds = time.monotonic() - began
    children = [child for child in psutil.Process().children(recursive=True) if child not in before]
    # Python's own tracker ends with the process.
    started = [child for child in children if "resource_tracker" not in " ".join(child.cmdline())]
    leftovers = (*(f"process {child}" for child in started), *(f"temporary {path}" for path in temporary.iterdir()))
    return Ended(
        code,
        out.getvalue(),
        err.getvalue(),
        seconds,
        leftovers,
        files_below(folder / "out"),
        started_others=bool(started),
    )
