"""Saved records, damaged in structure, text or bytes, as `omni compare` and `omni report` read and show them."""

from __future__ import annotations

import contextlib
import io
import json
import random
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from support.bench_records import pair, record
from support.profile_records import small_profile

from fuzz.documents import bombs, damage, json_text, mutate
from fuzz.profiles import scratch
from omni_cli.cli.compare import CompareOptions, compare
from omni_cli.cli.report import ReportOptions, report
from omni_cli.cli.report_documents import load_view
from omni_cli.config.gate_limits import GateLimits
from omni_cli.core.errors import OmniError
from omni_cli.records.profile_record import load_profile_record
from omni_cli.records.record import Failures, Record, load_record
from omni_cli.records.record_file import get_digest, with_digest
from omni_cli.records.results import RecordOrigin
from omni_cli.report.comparison_view import compare_document
from omni_cli.stats.verdicts import ComparisonSpec, compare_within

BOMBS = bombs()


class Case(NamedTuple):
    """`kind` is what the record was; `shows` is whether it is compared and drawn as well, which takes longest."""

    kind: str
    content: bytes
    shows: bool
    as_json: bool
    gated: bool


@cache
def originals() -> dict[str, str]:
    limits = GateLimits({"e2e_s": 0.05})
    answered = ComparisonSpec(limits).report(record(*pair(blocks=4, slowdown=1.2))).complete_record()
    alone = record(*pair(blocks=2)[:1])
    result = compare_within(record(*pair(blocks=4)), ComparisonSpec(limits=limits))
    source = RecordOrigin("a.json", "2026-11-20T10:00:00Z")
    documents = {
        "bench": with_digest(answered),
        "server": with_digest(_of_server(record(*pair(blocks=2)))),
        "single": with_digest(alone),
        "profile": with_digest(small_profile()),
        "compare": msgspec.to_builtins(compare_document(result, source, source)),
    }
    return {kind: json.dumps(document) for kind, document in documents.items()}


def _of_server(found: Record) -> Record:
    """The same with a few requests a sample, one of which has failed."""
    variants = []
    for variant in found.variants:
        samples = tuple(
            msgspec.structs.replace(
                sample,
                requests={"e2e_s": (sample.e2e_s, None), "ttft_s": (sample.e2e_s / 3, None)},
                failures={"timeout": Failures(count=1, first="no answer")},
            )
            for sample in variant.samples
        )
        variants.append(msgspec.structs.replace(variant, samples=samples))
    return msgspec.structs.replace(found, variants=tuple(variants))


def cases(rng: random.Random) -> Iterator[Case]:
    while True:
        kind = rng.choice(("bench", "server", "single", "profile")) if rng.random() < 0.98 else "compare"
        yield Case(kind, _content(rng, originals()[kind]), rng.random() < 0.015, rng.random() < 0.5, rng.random() < 0.5)


def _content(rng: random.Random, original: str) -> bytes:
    way = rng.random()
    if way < 0.005:
        return rng.choice(BOMBS)
    if way < 0.25:
        return damage(rng, original.encode())
    document = mutate(rng, json.loads(original))
    if isinstance(document, dict) and rng.random() < 0.8:
        # As a careful liar would: with a digest of what it says now, or with none.
        document.pop("digest", None)
        with contextlib.suppress(ValueError):
            if rng.random() < 0.5:
                document["digest"] = get_digest(document)
    content = json_text(document).encode(errors="replace")
    return damage(rng, content) if way > 0.95 else content


def check(case: Case) -> str:
    """Raises for everything but a comparison, a page or a clean refusal; a warning of a library counts as a finding."""
    path = scratch()
    path.write_bytes(case.content)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return _check(case, path)


def _check(case: Case, path: Path) -> str:
    # The command line's own functions; what they print goes nowhere.
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            if case.kind == "compare":
                load_view(path)
            elif case.kind == "profile":
                load_profile_record(path)
            elif case.shows:
                _compare(case, path)
            else:
                load_record(path)
            if case.shows:
                report(ReportOptions(records=[path], output=path.with_name("page.html")))
        except OmniError as error:
            assert error.message and "\x1b" not in error.message and len(error.message) < 20_000
            return "rejected"
    return "accepted"


def _compare(case: Case, path: Path) -> None:
    other = None
    if case.kind == "single":
        other = path.with_name("other")
        if not other.exists():
            other.write_text(originals()["single"])
    limits: dict[str, Any] = {"max_regression": "5%", "max_memory_regression": "2%"} if case.gated else {}
    markdown, junit = path.with_name("a.md"), path.with_name("a.xml")
    compare(CompareOptions(a=path, b=other, markdown=markdown, junit=junit, as_json=case.as_json, **limits))
