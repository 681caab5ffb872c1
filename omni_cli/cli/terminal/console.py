"""The one place that writes to the terminal: data to stdout, everything else to stderr.

Imports nothing heavy: it is loaded for `omni --help`.
"""

from __future__ import annotations

import io
import json
import os
import re
import select
import sys
import traceback
from collections.abc import Mapping
from typing import TextIO

from omni_cli.cli.terminal import interrupts
from omni_cli.core.errors import ExitCode, OmniError, OutputError

ERROR_SCHEMA = "omni.error/1"

_COLOURS = {"error": "\x1b[1;31m", "warning": "\x1b[1;33m", "hint": "\x1b[1;36m"}
_RESET = "\x1b[0m"
_LABEL = re.compile(r"^(error|warning|hint):", re.MULTILINE)

# No second document for a command that printed one and then fails, and none if stdout is full or closed.
_json_wanted = True


def reset() -> None:
    """Forget what an earlier command of this process printed, and make both streams accept any character.

    Characters that the terminal's encoding lacks, and invalid bytes of an argument, are escaped.
    """
    global _json_wanted
    _json_wanted = True
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def use_colour(stream: TextIO) -> bool:
    """True if escape codes may be written to `stream`: a terminal that supports them, and no `NO_COLOR`."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def print_text(text: str) -> None:
    """Write data to stdout, one newline at its end."""
    interrupts.check()
    _write(text if text.endswith("\n") else text + "\n")


def print_part(text: str) -> None:
    """Write a part of a line to stdout unchanged, and flush it."""
    _write(text)
    flush()


def print_json(document: Mapping[str, object], *, one_line: bool = False) -> None:
    """Write the one JSON document of a `--json` command to stdout; call it once.

    Raises `ValueError` for NaN and infinity, which JSON lacks, and before anything is written.
    """
    interrupts.check()
    _write_json(document, one_line=one_line)


def _write_json(document: Mapping[str, object], *, one_line: bool = False) -> None:
    global _json_wanted
    # backslashreplace would produce escapes that JSON does not have.
    ascii_only = (sys.stdout.encoding or "ascii").lower().replace("-", "") != "utf8"
    text = json.dumps(document, indent=None if one_line else 2, ensure_ascii=ascii_only, allow_nan=False)
    _json_wanted = False
    _write(text + "\n")


def flush() -> None:
    """Flush stdout; raises `OutputError` if that fails."""
    _write("")


def is_stdout_closed() -> bool:
    """True if stdout is a pipe without a reader."""
    try:
        descriptor = sys.stdout.fileno()
    except io.UnsupportedOperation:  # not a file: a test, or a program that runs commands itself
        return False
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def drop_stdout() -> None:
    """Discard buffered and later output, on which Python would fail again while it shuts down."""
    _lead_nowhere(sys.stdout)


def _lead_nowhere(stream: TextIO) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _write(text: str) -> None:
    global _json_wanted
    try:
        sys.stdout.write(text)
        if not text:
            sys.stdout.flush()
    except OSError as error:
        _json_wanted = False
        if isinstance(error, BrokenPipeError):
            raise
        drop_stdout()
        raise OutputError(f"cannot write to standard output: {error.strerror or error}") from error


def _tell(text: str) -> None:
    try:
        sys.stderr.write(text)
    except OSError:
        # A full disk or a closed pipe cannot be reported, and results do not depend on it.
        _lead_nowhere(sys.stderr)


def print_note(text: str) -> None:
    """Write progress or a result's context to stderr."""
    if use_colour(sys.stderr):
        text = _LABEL.sub(lambda match: f"{_COLOURS[match[1]]}{match[0]}{_RESET}", text)
    _tell(text + "\n")


def print_warning(message: str, *, hint: str | None = None, label: str = "warning") -> None:
    print_note(f"{label}: {message}" + (f"\n\nhint: {hint}" if hint else ""))


def print_error(error: OmniError, *, verbose: bool = False) -> None:
    """Show a failure on stderr: `error:`, blank line, `hint:`; with `verbose` also its traceback."""
    if verbose:
        _tell("".join(traceback.format_exception(error)) + "\n")
        if error.details:
            _tell(f"{error.details.rstrip()}\n\n")
    paragraphs = [f"error: {error.message}"]
    if error.hint:
        paragraphs.append(f"hint: {error.hint}")
    print_note("\n\n".join(paragraphs))


def error_document(error: OmniError) -> dict[str, object]:
    """Build the document that a failed `--json` command prints instead of its result.

    `kind` names the class (`profile`, `input`, `checkpoint`, `output`, `stage`, `deadline`, `usage`, ...);
    a profile's diagnostics are listed one by one.
    """
    public = next(cls for cls in type(error).__mro__ if cls.__module__ == OmniError.__module__)
    kind = "run" if public is OmniError else public.__name__.removesuffix("Error").lower()
    body: dict[str, object] = {
        "kind": getattr(error, "kind", None) or kind,
        "message": error.message,
        "hint": error.hint,
        "exit_code": int(error.exit_code),
    }
    for name in ("stage", "request_id"):
        if getattr(error, name, None) is not None:
            body[name] = getattr(error, name)
    diagnostics = getattr(error, "diagnostics", ())
    if diagnostics:
        body["diagnostics"] = [diagnostic.as_dict() for diagnostic in diagnostics]
    return {"schema": ERROR_SCHEMA, "error": body}


def report_failure(error: OmniError, *, as_json: bool, verbose: bool) -> ExitCode:
    """Show a failure on stderr and in the document, and return its exit code."""
    print_error(error, verbose=verbose)
    if as_json and _json_wanted:
        _write_json(error_document(error))
    return error.exit_code
