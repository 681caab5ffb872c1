"""`omni`, also as `python -m omni_cli`. Imports nothing before Ctrl-C and SIGTERM end it without a traceback."""

import os
import sys

from omni_cli.core.child_python import leave_out_current_folder

_EXIT_CODE_INTERRUPTED = 130


def _end_at_once(_number: int, _frame: object) -> None:
    os.write(2, b"error: interrupted\n")
    os._exit(_EXIT_CODE_INTERRUPTED)


def _open_closed_streams() -> None:
    """Reopen a standard stream that was closed before the start (`omni ... 2>&-`) on the null device.

    Otherwise the next file or socket gets its number, and receives whatever a library prints.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - open as long as the process lives
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


def main() -> None:
    """The console script; `python -m` has the current folder on the module path until its first line."""
    leave_out_current_folder()
    import signal

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # A signal that is ignored (`nohup`, a background job) stays so.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end_at_once)
    _open_closed_streams()
    from omni_cli.cli.app import main as run_command_line

    run_command_line()


if __name__ == "__main__":
    main()
