"""Exceptions as the failures that a stage's process reports."""

from __future__ import annotations

import traceback

from omni_cli.config.schema import StageConfig
from omni_cli.machine_limits import known_failure
from omni_cli.stage.library_messages import translate
from omni_cli.stage.messages import Failure
from omni_cli.stage.payloads import PayloadError


def request_failure(error: Exception, request_id: str, stage: StageConfig) -> Failure:
    """Describe the failure of a single request in a stage; call it in the exception handler."""
    details = traceback.format_exc()
    known = known_failure(error)
    if known is not None:
        return Failure.of(known, request_id=request_id, details=details)
    message, hint = translate(summary(error), stage)
    if isinstance(error, PayloadError) and error.limit is not None:
        hint = f"raise this stage's key `{error.limit}`"
    return Failure("stage", message, hint, details, request_id)


def stage_failure(error: Exception, stage: StageConfig) -> Failure:
    """Describe the failure of a stage while it runs; call it in the exception handler."""
    known = known_failure(error)
    message, hint = (known.message, known.hint) if known else translate(summary(error), stage)
    return Failure("stage", message, hint, details=traceback.format_exc())


def summary(error: Exception) -> str:
    """Summarize an exception in one line, with its type if the text is short, as a `KeyError`'s is."""
    text = " ".join(str(error).split())
    return text if len(text) > 10 else f"{type(error).__name__}: {text}"
