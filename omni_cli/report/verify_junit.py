"""A verification as JUnit XML: a difference is a failure, a row that was not checked is skipped."""

from __future__ import annotations

from omni_cli.report.junit import add_case, add_outcome, new_suite, to_xml
from omni_cli.report.verify_text import details
from omni_cli.verify_record import VerifyRecord


def verify_junit(record: VerifyRecord, *, strict: bool = False) -> str:
    """Write one test case per row; with `strict`, a near tie is a failure, too."""
    suite = new_suite(str(record.subject.get("profile") or record.subject.get("url") or "omni verify"))
    for row in record.rows:
        case = add_case(suite, "omni.verify", row.name)
        if row.verdict == "different" or (strict and row.verdict == "near tie"):
            add_outcome(case, "failure", row.verdict, details(row))
        elif row.verdict == "not checked":
            add_outcome(case, "skipped", row.verdict, details(row))
    if record.stopped is not None:
        add_outcome(add_case(suite, "omni.verify", "whole run"), "error", "stopped", record.stopped)
    return to_xml(suite)
