"""JUnit XML: suites of cases, each passed, failed, skipped or broken."""

from __future__ import annotations

import re
from xml.etree import ElementTree

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_PLURALS = {"failure": "failures", "error": "errors", "skipped": "skipped"}


def new_suite(name: str) -> ElementTree.Element:
    return ElementTree.Element("testsuite", name=_clean(name))


def add_case(suite: ElementTree.Element, class_name: str, name: str) -> ElementTree.Element:
    return ElementTree.SubElement(suite, "testcase", classname=class_name, name=_clean(name))


def add_outcome(case: ElementTree.Element, tag: str, kind: str, message: str) -> None:
    """Mark a case as `failure`, `error` or `skipped`."""
    attributes = {"message": _clean(message)}
    if tag != "skipped":
        attributes["type"] = kind
    ElementTree.SubElement(case, tag, attributes)


def to_xml(suite: ElementTree.Element) -> str:
    """Return the document, with the suite's numbers of cases."""
    for tag, plural in _PLURALS.items():
        suite.set(plural, str(len(suite.findall(f"testcase/{tag}"))))
    suite.set("tests", str(len(suite)))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _clean(text: str) -> str:
    """Remove the characters that XML cannot represent."""
    return _NOT_XML.sub("?", text)
