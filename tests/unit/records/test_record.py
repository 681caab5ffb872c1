"""Saved records: the round trip, and every way in which a file is not one."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.bench_records import pair, record

from omni_cli.core.errors import ExitCode, InputError, OutputError
from omni_cli.records import record_file
from omni_cli.records.record import (
    DeviceLoad,
    Record,
    StoppingPlan,
    load_record,
    read_record,
    workload_fingerprint,
)
from omni_cli.records.record_file import save_record
from omni_cli.stats.blocks import get_values, metric_names


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "run.json"
    save_record(record(*pair(3)), path)
    return path


def test_round_trip(tmp_path: Path) -> None:
    written = msgspec.structs.replace(record(*pair(3)), sampling=StoppingPlan(looks=(8, 12), reversed_from=6))
    path = tmp_path / "new" / "run.json"
    save_record(written, path)
    assert msgspec.structs.replace(load_record(path), digest=None) == written
    assert [entry.name for entry in path.parent.iterdir()] == ["run.json"]
    document = json.loads(path.read_text())
    assert document["schema"] == "omni.bench/1"
    assert document["variants"][0]["samples"][0].keys() >= {"block", "position", "e2e_s", "metrics", "work"}


def test_the_load_of_devices_is_kept_and_checked(tmp_path: Path) -> None:
    loads = (DeviceLoad(index=1, sm_clock_mhz=1455, max_sm_clock_mhz=1980, power_w=698.5, power_limit_w=700),)
    first, second = pair(3)
    written = record(msgspec.structs.replace(first, device_load=loads), second)
    path = tmp_path / "run.json"
    save_record(written, path)
    assert [variant.device_load for variant in load_record(path).variants] == [loads, ()]
    save_record(
        record(msgspec.structs.replace(first, device_load=(DeviceLoad(index=0, sm_clock_mhz=1, power_w=-1),))), path
    )
    with pytest.raises(InputError, match=r"expected `float` >= 0.0 at `variants\[0\].device_load\[0\].power_w"):
        load_record(path)


def test_values_of_a_variant() -> None:
    a, _ = pair(2)
    assert metric_names(a) == ("e2e_s", "ttft_s")
    assert [block for block, _ in get_values(a, "ttft_s")] == [0, 0, 1, 1]
    assert get_values(a, "unknown") == []
    with pytest.raises(KeyError):
        record(a).variant("b")


def test_the_fingerprint_is_of_everything_else() -> None:
    workload = {"stage": "thinker", "input_len": 8}
    fingerprint = workload_fingerprint(workload)
    assert fingerprint == workload_fingerprint({"input_len": 8, "stage": "thinker", "fingerprint": "other"})
    assert fingerprint != workload_fingerprint({**workload, "input_len": 9})


def test_a_full_or_missing_disk(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"cannot write the record .*Not a directory"):
        save_record(record(*pair(2)), tmp_path / "file" / "deeper" / "run.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"\xff\xfe{}", "is not JSON"),
        (b"hello", "is not JSON"),
        (b'{"schema": NaN}', "is not JSON"),
        (b"[1, 2]", "is JSON, but not a bench record: it has no `schema`"),
        (b'{"avg_latency": 1.5, "latencies": [1.5]}', "is JSON, but not a bench record"),
        (b'{"schema": "omni.generate/1"}', "has the schema `omni.generate/1`; a bench record has `omni.bench/1`"),
        (b'{"schema": "omni.bench/2"}', "has the schema `omni.bench/2`"),
        (b'{"schema": "omni.bench/1"}', "is not a complete bench record: object missing required field `created`"),
        (b"[" * 100_000, "is nested too deeply|is truncated|is not JSON"),
    ],
)
def test_files_that_are_no_record(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        load_record(path)
    assert caught.value.exit_code is ExitCode.USAGE


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        load_record(tmp_path / "none.json")
    with pytest.raises(InputError, match="directory"):
        load_record(tmp_path)
    with pytest.raises(InputError, match="null byte"):
        load_record(tmp_path / "a\0b")
    monkeypatch.setattr(record_file, "MAX_BYTES", 100)
    with pytest.raises(InputError, match="is larger than"):
        load_record(saved)


def test_every_cut_is_noticed(saved: Path) -> None:
    content = saved.read_bytes()
    cuts = random.Random(0).sample(range(1, len(content) - 2), 60)
    for cut in cuts:
        saved.write_bytes(content[:cut])
        with pytest.raises(InputError, match=r"is truncated after \d+ bytes|is empty"):
            load_record(saved)


def changed(path: Path, change: Callable[[dict[str, Any]], None], *, keep_digest: bool) -> Path:
    document = json.loads(path.read_text())
    change(document)
    if not keep_digest:
        del document["digest"]
    path.write_text(json.dumps(document))
    return path


def first(document: dict[str, Any]) -> dict[str, Any]:
    return document["variants"][0]["samples"][0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: first(d).update(e2e_s=0), r"expected `float` >= 1e-12 at `variants\[0\].samples\[0\].e2e_s`"),
        (lambda d: first(d).update(e2e_s="1"), r"expected `float`, got `str` at `variants\[0\].samples\[0\].e2e_s`"),
        (lambda d: first(d).pop("e2e_s"), "object missing required field `e2e_s` at"),
        (lambda d: first(d).update(block=-1), "expected `int` >= 0 at .*block`"),
        (lambda d: first(d).update(block=2**64), "(expected `int` <= 2147483647|integer out of range) at .*block`"),
        (lambda d: first(d).update(e2e_s=1e308), "expected `float` <= 10000000000.0 at .*e2e_s`"),
        (lambda d: first(d)["metrics"].update(x=5e-324), "`x` is 5e-324, not an amount"),
        (lambda d: d.update(sampling={"alpha": 5e-324}), "expected `float` >= 0.0001 at `sampling.alpha`"),
        (lambda d: first(d)["metrics"].update(x=-1), "expected `float` >= 0.0 at .*metrics"),
        (lambda d: d.update(variants=[]), "has no variants"),
        (lambda d: d["variants"].append(d["variants"][0]), "the names of its variants are not unique"),
        (lambda d: d["variants"][0].update(name="a\x1b[31m"), "the names of its variants contain control characters"),
        (
            lambda d: d["variants"][0].update(memory={"peak_allocated_bytes": -5}),
            "expected `int` >= 0 at .*memory.peak_allocated_bytes`",
        ),
        (lambda d: d.update(sampling={"looks": [3, 2]}), "its `sampling` is not a plan"),
        (lambda d: d["variants"][0].update(summary={"e2e_s": 3}), "expected `object`, got `int` at `variants"),
    ],
)
def test_records_that_no_run_writes(saved: Path, change: Callable[[dict[str, Any]], None], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_record(changed(saved, change, keep_digest=False))


@pytest.mark.parametrize(
    "change",
    [
        lambda d: first(d).update(e2e_s=first(d)["e2e_s"] * 0.9),
        lambda d: d["environment"].update(machine="another"),
        lambda d: d["variants"][1].update(name="c"),
        lambda d: d.update(extra=1),
    ],
)
def test_any_change_by_hand_is_noticed(saved: Path, change: Callable[[dict[str, Any]], None]) -> None:
    changed(saved, change, keep_digest=True)
    with pytest.raises(InputError, match="was changed after it was written"):
        load_record(saved)
    found, edit = read_record(saved)
    assert isinstance(found, Record)
    assert "does not fit its digest" in edit


def test_formatting_is_no_change(saved: Path) -> None:
    document = json.loads(saved.read_text())
    saved.write_text(json.dumps(dict(reversed(document.items()))))
    assert load_record(saved).digest == document["digest"] == record_file.with_digest(load_record(saved))["digest"]


@pytest.mark.slow
def test_random_damage_never_ends_in_another_error(saved: Path) -> None:
    content = saved.read_bytes()
    rng = random.Random(1)
    refused = 0
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        saved.write_bytes(damaged)
        try:
            load_record(saved)
        except InputError:
            refused += 1
    assert refused > 250
