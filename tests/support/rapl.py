"""A processor's package in a folder like the kernel's, which takes a given power."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import TracebackType

RANGE_UJ = 1_000_000_000


class Package:
    """Takes `power_w` while its `with` block runs; its counter wraps around after 1 kJ."""

    def __init__(self, root: Path, power_w: float) -> None:
        self._folder = root / "sys/class/powercap/intel-rapl:0"
        self._folder.mkdir(parents=True)
        (self._folder / "name").write_text("package-0\n")
        (self._folder / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
        self._power_w, self._began_s = power_w, time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._write()

    def __enter__(self) -> Package:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            self._write()

    def _write(self) -> None:
        """Replace the file: readers never see half of a number, as from the kernel."""
        joules = self._power_w * (time.monotonic() - self._began_s)
        (self._folder / "new").write_text(f"{int(joules * 1e6) % RANGE_UJ}\n")
        (self._folder / "new").replace(self._folder / "energy_uj")
