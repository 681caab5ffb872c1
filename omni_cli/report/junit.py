"""A view's cases as JUnit XML: each passed, failed, skipped or broken."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from omni_cli.report.view import View

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_PLURALS = {"failure": "failures", "error": "errors", "skipped": "skipped"}


def to_junit(view: View, name: str) -> str:
    """Return a suite of that name with its numbers of cases. Characters that XML cannot represent become `?`."""
    root = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(root, "testsuite", name=_NOT_XML.sub("?", name))
    for tag, plural in _PLURALS.items():
        suite.set(plural, str(sum(case.outcome == tag for case in view.cases)))
    suite.set("tests", str(len(view.cases)))
    for case in view.cases:
        test = ElementTree.SubElement(suite, "testcase", classname=case.group, name=_NOT_XML.sub("?", case.name))
        if case.outcome is not None:
            of_kind = {} if case.outcome == "skipped" else {"type": case.word}
            ElementTree.SubElement(test, case.outcome, {"message": _NOT_XML.sub("?", case.message), **of_kind})
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"
