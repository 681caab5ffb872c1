"""Damaged profiles, records, request lines, gate files, messages and media; many more by `python -m fuzz`."""

from __future__ import annotations

import importlib
import itertools
import random

import pytest
from fuzz.documents import bombs

COUNTS = {"profiles": 150, "gates": 100, "requests": 300, "records": 60, "wire": 2000, "media": 500}


@pytest.mark.parametrize("target", COUNTS)
def test_every_case_is_accepted_or_rejected_cleanly(target: str) -> None:
    module = importlib.import_module(f"fuzz.{target}")
    ends = [module.check(case) for case in itertools.islice(module.cases(random.Random(7)), COUNTS[target])]
    assert {"accepted", "rejected"} == set(ends)


@pytest.mark.parametrize("content", bombs()[:12], ids=lambda content: repr(content[:12]))
def test_costly_files_do_not_take_long(content: bytes) -> None:
    profiles = importlib.import_module("fuzz.profiles")
    assert profiles.check(profiles.Case(content, ())) == "rejected"
