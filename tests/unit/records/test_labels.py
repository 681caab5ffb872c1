"""Names in one list: those that are alike get what differs, and no two are alike."""

from __future__ import annotations

import msgspec
from support.bench_records import ENVIRONMENT, pair, record

from omni_cli.records.labels import get_facts, tell_apart
from omni_cli.records.record import Record


def label(*records: Record) -> list[str]:
    return tell_apart(
        ["tiny"] * len(records),
        [get_facts(item.environment, item.workload, item.created, item.variants) for item in records],
    )


def test_names_that_differ_stay() -> None:
    assert tell_apart(["a", "b"], [{"x": 1}, {"x": 2}]) == ["a", "b"]


def test_settings_tell_records_apart_before_all_else() -> None:
    first = msgspec.structs.replace(pair()[0], settings={"steps": 2})
    second = msgspec.structs.replace(first, settings={"steps": 8})
    environment = {**ENVIRONMENT, "code": {"commit": "b2"}}
    assert label(record(first), record(second, environment=environment)) == ["tiny (steps 2)", "tiny (steps 8)"]


def test_the_commit_tells_equal_settings_apart() -> None:
    first = record(pair()[0])
    second = record(pair()[0], environment={**ENVIRONMENT, "code": {"commit": "b" * 40}})
    assert label(first, second) == ["tiny (commit a1)", f"tiny (commit {'b' * 10})"]


def test_as_many_facts_as_it_takes() -> None:
    facts = [{"size": size, "steps": steps, "same": 0} for size in (1, 8) for steps in (2, 4)]
    found = tell_apart(["tiny"] * 4, facts)
    assert found == [f"tiny (size {size}, steps {steps})" for size in (1, 8) for steps in (2, 4)]


def test_the_same_record_twice_is_numbered() -> None:
    one = record(pair()[0])
    assert label(one, one) == ["tiny (no. 1)", "tiny (no. 2)"]
