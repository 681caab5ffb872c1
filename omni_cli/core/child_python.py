"""Start of the Pythons below a command: none imports from the current folder, which may be a stranger's.

Imported before the current folder is off the module path: imports only what each Python has loaded at its start.
"""

import os
import sys

import omni_cli

_VARIABLES = ("PYTHONPATH", "PYTHONSAFEPATH")
# As the user set them.
_users_values = {name: os.environ.get(name) for name in _VARIABLES}


def python_command(*arguments: str) -> list[str]:
    """Return the command line of a Python with these arguments."""
    return [sys.executable, "-P", *arguments]


def leave_out_current_folder() -> None:
    """Take the current folder off the module path of this process, and off those of all Pythons below it.

    A folder that PYTHONPATH names stays, and so does the one that holds this package. An empty entry of PYTHONPATH, as
    in `$PYTHONPATH:folder`, names none.
    """
    # Also for the Pythons that libraries start: vLLM, torch, Ray, multiprocessing.
    os.environ["PYTHONSAFEPATH"] = "1"
    entries = os.environ.pop("PYTHONPATH", "").split(os.pathsep)
    named = [entry for entry in entries if entry]
    if named:
        os.environ["PYTHONPATH"] = os.pathsep.join(named)
    try:
        here = os.getcwd()  # noqa: PTH109
    except FileNotFoundError:  # it was removed
        return
    if f"{here}/omni_cli" in omni_cli.__path__ or here in map(os.path.abspath, named):
        return
    # Python puts the current folder first for `-m`, except with `-P`; an empty entry of PYTHONPATH comes next.
    if not sys.flags.safe_path and sys.path[:1] in ([here], [""]):
        del sys.path[0]
    if named and len(named) < len(entries) and here in sys.path:
        sys.path.remove(here)


def users_environment() -> dict[str, str]:
    """Return the environment for a program of the user's: with Python's variables as the user set them."""
    others = {name: value for name, value in os.environ.items() if name not in _VARIABLES}
    return others | {name: value for name, value in _users_values.items() if value is not None}
