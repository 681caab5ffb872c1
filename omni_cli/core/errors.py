"""Every failure that a user can cause, with its exit code.

    OmniError                    6  the run failed
    ├── UsageError               2  a wrong option or argument
    │   ├── ProfileError         2  the profile (or `--set`) is wrong; carries all diagnostics
    │   ├── InputError           2  a prompt, audio or image that cannot be used
    │   ├── CheckpointError      2  a model folder that is missing or broken
    │   └── OutputError          2  the output folder cannot be written
    ├── StageError               6  a stage failed while loading or running
    └── DeadlineError            6  `--timeout` or a stage's deadline passed

Only `omni_cli.cli` prints these or turns them into exit codes.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit status of the process; the contract fixes the numbers."""

    OK = 0
    REGRESSION = 1
    USAGE = 2
    INCONCLUSIVE = 3
    NOT_COMPARABLE = 4
    OUTPUT_MISMATCH = 5
    RUN_FAILED = 6
    INTERRUPTED = 130


class OmniError(Exception):
    """A failure shown to the user as one `error:` paragraph and, if there is something to do, a `hint:`.

    `details` is the traceback or log tail of the process in which it occurred, if that is another one; `-v` shows it.
    """

    exit_code = ExitCode.RUN_FAILED
    details: str | None = None

    def __init__(self, message: str, *, hint: str | None = None, exit_code: ExitCode | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if exit_code is not None:
            self.exit_code = exit_code
        if hint is not None:
            self.add_note(f"hint: {hint}")  # for the traceback of a program that uses the package

    @property
    def in_one_line(self) -> str:
        """The message, with the hint in parentheses."""
        return self.message if self.hint is None else f"{self.message} ({self.hint})"

    def __reduce__(self) -> tuple[object, ...]:
        # Unpickling recreates exceptions from positional arguments only; most of these have keyword arguments.
        return _rebuilt, (type(self), self.args, self.__dict__)


def _rebuilt(kind: type[OmniError], arguments: tuple[object, ...], fields: dict[str, object]) -> OmniError:
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    error.__dict__.update(fields)
    return error


class UsageError(OmniError):
    exit_code = ExitCode.USAGE


class ProfileError(UsageError):
    """One or more mistakes in a profile; `message` is the rendered diagnostics."""


class InputError(UsageError):
    pass


class CheckpointError(UsageError):
    pass


class OutputError(UsageError):
    pass


class StageError(OmniError):
    """A stage failed.

    `stage` is its name in the profile; `request_id` is set if a single request caused it.
    """

    def __init__(
        self,
        message: str,
        *,
        stage: str,
        request_id: str | None = None,
        hint: str | None = None,
        details: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.stage = stage
        self.request_id = request_id
        self.details = details


class DeadlineError(OmniError):
    pass


class AnswerError(OmniError):
    """An invalid answer, counted under `kind`."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
