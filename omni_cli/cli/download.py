"""Downloads on the terminal: the size in advance, a question if it is large, progress, another process's download."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from omni_cli.cli.terminal import console, interrupts
from omni_cli.cli.terminal.live_display import REFRESH_PER_SECOND, LiveLine
from omni_cli.core.errors import UsageError
from omni_cli.report.units import count, memory, size

if TYPE_CHECKING:
    from omni_cli.checkpoints.hub import Download
    from omni_cli.config.schema import EngineConfig

_ASKS_ABOVE_BYTES = 5 * 10**9


def fetch_model(config: EngineConfig, *, quiet: bool) -> None:
    """Download a profile's model if it is a repository that the cache lacks. Raises `OmniError`."""
    from omni_cli.checkpoints.files import REPO_ID
    from omni_cli.engine.checkpoint_fit import check_start

    if REPO_ID.fullmatch(config.model) and check_start(config) is None:
        pull(config.model, None, yes=False, quiet=quiet)


def pull(repo_id: str, revision: str | None, *, yes: bool, quiet: bool) -> tuple[Download, Path]:
    """Download what the cache lacks of a repository. Raises `OmniError`."""
    from omni_cli.checkpoints.hub import fetch, plan_download

    plan = plan_download(repo_id, revision)
    if plan.missing_bytes == 0 or plan.files is None:
        return plan, fetch(plan)
    if plan.missing_bytes > _ASKS_ABOVE_BYTES and not yes:
        confirm(f"Download {repo_id}, {memory(plan.missing_bytes)}?", f"omni models pull {repo_id} --yes")
    if not quiet:
        of = "" if plan.missing_bytes == plan.size_bytes else f" of {size(plan.size_bytes)}"
        console.print_note(f"downloading {repo_id}: {size(plan.missing_bytes)}{of}, {count(len(plan.files), 'file')}")
    progress = _Progress(plan, quiet=quiet)
    try:
        folder = fetch(plan, progress.advance, lambda: _waiting(repo_id))
    finally:
        progress.hide()
        interrupts.check()
    return plan, folder


def confirm(question: str, command: str) -> None:
    """Ask on the terminal; a `no` raises `UsageError`, and so does a missing terminal, naming the `command`."""
    if not (sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"no terminal to ask on: {question}", hint=f"to agree, run `{command}`")
    if not typer.confirm(question, err=True):
        raise UsageError("stopped, nothing was changed")


def _waiting(repo_id: str) -> None:
    console.print_note(f"another process downloads {repo_id}: waiting for it")


class _Progress:
    """Bytes and rate as a live line on a terminal; advanced by the threads of a download."""

    def __init__(self, plan: Download, *, quiet: bool) -> None:
        self._plan = plan
        self._line = LiveLine(sys.stderr, quiet=quiet, verbose=False)
        self._lock = threading.Lock()
        self._began_s = self._shown_s = time.monotonic()
        self._num_bytes = 0.0

    def advance(self, num_bytes: float) -> None:
        """Count new bytes; raise `KeyboardInterrupt` after an interrupt, which ends the thread's download."""
        interrupts.check()
        with self._lock:
            now = time.monotonic()
            self._num_bytes += num_bytes
            if now - self._shown_s >= 1 / REFRESH_PER_SECOND:
                self._shown_s = now
                done, rate = int(self._num_bytes), int(self._num_bytes / (now - self._began_s))
                self._line.say(f"{size(done)} of {size(self._plan.missing_bytes)}, {size(rate)}/s")

    def hide(self) -> None:
        self._line.hide()
