"""`omni`, also as `python -m omni_cli`. Nothing is imported here before Ctrl-C has an answer without a traceback."""

from __future__ import annotations

import os
import signal
from typing import NoReturn

_INTERRUPTED = 130


def _end_at_once(_number: int, _frame: object) -> None:
    os.write(2, b"error: interrupted\n")
    os._exit(_INTERRUPTED)


def main() -> NoReturn:
    """The console script."""
    # Where Ctrl-C is ignored (`nohup`, a background job) it stays ignored.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_at_once)
    from omni_cli.cli.app import main as run_command_line

    run_command_line()


if __name__ == "__main__":
    main()
