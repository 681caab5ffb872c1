"""Exceptions as the failures that a stage's process reports."""

from __future__ import annotations

import traceback

from omni_cli.errors import OmniError
from omni_cli.stage.messages import Failure
from omni_cli.stage.payloads import PayloadError


def request_failure(error: Exception, request_id: str) -> Failure:
    """Describe the failure of a single request; call it in the exception handler."""
    details = traceback.format_exc()
    if isinstance(error, OmniError):
        return Failure.of(error, request_id=request_id, details=details)
    limit = error.limit if isinstance(error, PayloadError) else None
    hint = None if limit is None else f"raise this stage's key `{limit}`"
    return Failure("stage", summary(error), hint, details, request_id)


def summary(error: Exception) -> str:
    """An exception in one line; short texts, such as a `KeyError`'s, with its type."""
    text = " ".join(str(error).split())
    return text if len(text) > 10 else f"{type(error).__name__}: {text}"
