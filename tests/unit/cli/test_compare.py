"""`omni compare`, as a user calls it."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest
from support.bench_records import ABBA, ENVIRONMENT, pair, record, variant

from omni_cli.cli import app
from omni_cli.measure.bench.outputs import hash_arrays, kept_outputs
from omni_cli.records.record import KeptOutput, Memory, Record
from omni_cli.records.record_file import save_record
from omni_cli.requests.encoding import encode_png

ROOT = Path(__file__).parents[3]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `omni compare ...` in an empty folder; (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run_command_line(*argv: str) -> tuple[int, str, str]:
        code = app.run(["compare", *argv])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return int(code), captured.out, captured.err

    return run_command_line


def save(name: str, saved: Record) -> str:
    save_record(saved, Path(name))
    return name


def single(slowdown: float = 1.0, *, blocks: int = 40, cv: float = 0.002, seed: int = 0, **fields: Any) -> Record:
    """A record of one variant that ran alone."""
    environment = fields.pop("environment", None)
    workload = fields.pop("workload", {})
    _, b = pair(blocks, slowdown, cv=cv, seed=seed, lag1=0.0)
    return record(msgspec.structs.replace(b, name="default", **fields), environment=environment, **workload)


def test_two_records_side_by_side(run: Run) -> None:
    a, b = save("base.json", single()), save("new.json", single(1.1, seed=1, memory=Memory(peak_allocated_bytes=2**31)))
    code, out, err = run(a, b)
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "new.json (B) against base.json (A), centres of 40 blocks each, measured one after the other"
    assert lines[1].split() == ["Metric", "base.json", "new.json", "B", "/", "A", "[95%", "CI]", "Verdict"]
    assert lines[2].split()[0] == "e2e"
    assert lines[2].endswith("slower")
    verdicts = lines[1].index("Verdict")
    assert all(line[verdicts - 2 : verdicts] == "  " for line in lines[2:6])
    assert lines[-1].startswith("new.json ran 1.0995 [")
    assert lines[-1].endswith("] times slower than base.json, for +1.0 GiB")
    assert err.startswith("warning: measured one after the other")
    assert "hint: to rule that out, measure both interleaved" in err


def test_the_variants_of_one_record(run: Run) -> None:
    path = save("run.json", record(*pair(40, 0.8, cv=0.01)))
    code, out, err = run(path)
    assert (code, err) == (0, "")
    assert "b ran 1.2" in out
    assert "times faster than a" in out
    assert "measured interleaved" in out
    code, out, err = run(save("one.json", single()))
    assert (code, out) == (2, "")
    assert err.startswith("error: `one.json` has a single variant")


def test_swapped_sides_say_the_same(run: Run) -> None:
    a, b = save("a.json", single()), save("b.json", single(1.1, seed=1))
    forth = json.loads(run(a, b, "--json")[1])["comparisons"][0]
    back = json.loads(run(b, a, "--json")[1])["comparisons"][0]
    assert forth["ratio"] == pytest.approx(1 / back["ratio"])
    assert (forth["verdict"], back["verdict"]) == ("slower", "faster")


def test_a_record_against_itself(run: Run) -> None:
    path = save("run.json", single(cv=0.1))
    code, out, err = run(path, path)
    assert code == 0
    assert "1.000 [1.000, 1.000]  no difference" in out
    assert err.count("warning: both records are the same measurement\n") == 1


def test_an_allowed_difference_that_is_not_there_is_named(run: Run) -> None:
    a, b = save("a.json", single()), save("b.json", single(seed=1, workload={"batch_size": 8}))
    for field, is_named in (("batch_size", True), ("work", True), ("workload", False), ("workload.batch_size", False)):
        code, _, err = run(a, b, "--allow-difference", field)
        assert code == (4 if is_named else 0)
        assert (f"`--allow-difference {field}` names none of the fields that differ" in err) == is_named


def test_a_self_check_that_cannot_be_names_another_command(run: Run) -> None:
    both, alone = save("both.json", record(*pair(40, 1.0, cv=0.01))), save("one.json", single())
    assert "hint: measure one: `omni bench" in run(both, "--self-check")[2]
    assert f"hint: leave out `{both}`" in run(alone, both, "--self-check")[2]


GATED: list[tuple[str, dict[str, Any], list[str], int, str]] = [
    ("pass", {}, ["--max-regression", "5%"], 0, ""),
    ("regression", {"slowdown": 1.2}, ["--max-regression", "5%"], 1, "error: gate failed: `e2e_s` is worse by +19."),
    ("inconclusive", {"slowdown": 1.05, "cv": 0.1}, ["--max-regression", "5%"], 3, "error: gate inconclusive: e2e +"),
    ("few", {"slowdown": 2.0, "blocks": 7}, ["--max-regression", "5%"], 3, "error: gate inconclusive: e2e +"),
    (
        "machine",
        {"environment": {**ENVIRONMENT, "machine": {"cpu": "Test 2", "usable_cores": 2}}},
        ["--max-regression", "5%"],
        4,
        "error: not comparable: environment.machine.cpu (Test 1 against Test 2)",
    ),
    ("workload", {"workload": {"batch_size": 8}}, [], 4, "error: not comparable: workload.batch_size (1 against 8)"),
    (
        "outputs",
        {"output_sha256": "beef"},
        ["--require-identical-outputs"],
        5,
        "error: gate failed: outputs of `default` and `default` are not identical",
    ),
    (
        "failed",
        {"error": "out of memory in block 7"},
        ["--max-regression", "5%"],
        6,
        "error: the run failed: variant `default` of B failed: out of memory in block 7",
    ),
    (
        "failed without a gate",
        {"error": "out of memory"},
        [],
        6,
        "error: the run failed: variant `default` of B failed",
    ),
    (
        "memory",
        {"memory": Memory(peak_allocated_bytes=2**30 + 2**25)},
        ["--max-memory-regression", "2%"],
        1,
        "error: gate failed: `peak_allocated_bytes` is worse by +3.1%, the limit is 2%",
    ),
    (
        "no device",
        {"memory": Memory()},
        ["--max-memory-regression", "2%"],
        3,
        "error: gate inconclusive: peak host rss (not measured on both sides",
    ),
    ("no verdict", {"slowdown": 1.01, "cv": 0.3}, [], 3, "error: no verdict: too noisy, or too few blocks"),
]


@pytest.mark.parametrize(
    ("second", "options", "expected", "error"), [case[1:] for case in GATED], ids=[c[0] for c in GATED]
)
def test_exit_codes(run: Run, second: dict[str, Any], options: list[str], expected: int, error: str) -> None:
    a, b = save("a.json", single()), save("b.json", single(seed=1, **second))
    code, out, err = run(a, b, *options)
    assert code == expected, err
    assert out
    assert err.count("error:") == (expected != 0)
    assert error in err
    # The same with --json: one document, and the same exit code.
    code, out, _ = run(a, b, *options, "--json", "--junit", "j.xml", "--markdown", "m.md")
    document = json.loads(out)
    assert (code, document["schema"]) == (expected, "omni.compare/1")
    assert document["comparable"] == (expected != 4)
    assert bool(document["comparisons"]) == (expected != 4)
    suite = ElementTree.parse("j.xml").getroot()[0]
    bad = int(suite.get("failures")) + int(suite.get("errors"))
    assert bool(bad) == (expected != 0)
    assert Path("m.md").read_text().startswith("### omni ")


def test_json_follows_the_contract(run: Run) -> None:
    a, b = save("a.json", single()), save("b.json", single(1.2, seed=1))
    code, out, _ = run(a, b, "--max-regression", "5%", "--metric", "e2e_s", "--metric", "ttft_s", "--json")
    document = json.loads(out)
    assert code == 1
    for entry in document["comparisons"]:
        assert entry.keys() >= {"metric", "a", "b", "ratio", "ci95", "verdict", "outputs"}
        assert entry["ci95"][0] < entry["ratio"] < entry["ci95"][1]
        assert entry["outputs"] == {"identical": True, "max_abs_diff": 0.0}
    gate = document["gate"]
    assert (gate["verdict"], gate["max_regression"]) == ("regression", 0.05)
    assert [(m["metric"], m["verdict"]) for m in gate["metrics"]] == [("e2e_s", "regression"), ("ttft_s", "regression")]
    assert document["a"]["path"] == "a.json"


def test_a_gate_file_is_named_with_its_line(run: Run) -> None:
    a, b = save("a.json", single()), save("b.json", single(1.2, seed=1))
    Path("gate.yaml").write_text("version: 1\nmetrics:\n  ttft_s: 50%\n  e2e_s: 3%\n")
    code, out, err = run(a, b, "--gate", "gate.yaml")
    assert code == 1
    assert "the limit is 3% (gate.yaml:4:3)" in err
    assert [line.split()[-1] for line in out.partition("Gate\n")[2].splitlines()] == ["regression", "pass"]
    Path("gate.yaml").write_text("version: 1\nmetrics:\n  ttff_s: 50%\n")
    code, out, err = run(a, b, "--gate", "gate.yaml")
    assert (code, out) == (2, "")
    assert err == "error: gate.yaml:3:3: unknown metric `ttff_s`\n\nhint: did you mean `ttft_s`?\n"
    Path("gate.yaml").write_text("version: 1\nmetrics:\n  e2e_s: 5\n")
    code, _, err = run(a, b, "--gate", "gate.yaml")
    assert code == 2
    assert err.startswith("error: gate.yaml:3:10: `5` would be 500%")


def test_differences_are_reported(run: Run) -> None:
    a = save("a.json", single())
    code = {"omni": "0.1.0", "commit": "b2"}
    b = save("b.json", single(seed=1, environment={**ENVIRONMENT, "code": code}))
    assert "Differs only in: code.commit (a1 -> b2)" in run(a, b)[1]
    other = save("c.json", single(seed=1, workload={"batch_size": 8}))
    ended, out, _ = run(a, other, "--allow-difference", "workload.batch_size")
    assert ended == 0
    assert "Differs only in: workload.batch_size (1 -> 8)" in out


def test_another_margin(run: Run) -> None:
    a, b = save("a.json", single()), save("b.json", single(1.03, seed=1))
    assert "slower" in run(a, b)[1]
    assert "any difference is below 10%" in run(a, b, "--margin", "10%")[1]


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (["none.json", "a.json"], "error: cannot read the record `none.json`: No such file or directory"),
        (["cut.json", "a.json"], "error: `cut.json` is truncated after"),
        (["a.json", "edited.json"], "error: `edited.json`: the record was changed after it was written"),
        (["a.json", "foreign.json"], "error: `foreign.json` is JSON, but not a bench record"),
        (["a.json", "a.json", "--metric", "e2e"], "error: unknown metric `e2e`"),
        (
            ["a.json", "a.json", "--max-regression", "5"],
            "error: invalid value for `--max-regression`: `5` would be 500%",
        ),
        (["a.json", "a.json", "--max-regression", "0"], "error: invalid value for `--max-regression`: a limit of 0"),
        (["a.json", "a.json", "--max-memory-regression", "x"], "error: invalid value for `--max-memory-regression`"),
        (["a.json", "a.json", "--margin", "-1%"], "error: invalid value for `--margin`"),
        (["a.json", "a.json", "--gate", "none.yaml"], "error: cannot read the gate file `none.yaml`"),
        (["a.json", "a.json", "--markdown", "no/such/m.md"], "error: cannot write `no/such/m.md`"),
        ([], "error: missing argument"),
    ],
)
def test_mistakes(run: Run, argv: list[str], error: str) -> None:
    save("a.json", single())
    content = Path("a.json").read_text()
    Path("cut.json").write_text(content[: len(content) // 2])
    Path("edited.json").write_text(content.replace('"created": "2026', '"created": "2025'))
    Path("foreign.json").write_text('{"avg_latency": 1.5}')
    code, out, err = run(*argv)
    assert (code, out) == (2, "")
    assert err.startswith(error)
    code, out, _ = run(*argv, "--json")
    assert (code, json.loads(out)["schema"]) == (2, "omni.error/1")


def test_another_machine_is_a_better_answer_than_an_edit(run: Run) -> None:
    save("a.json", single())
    Path("b.json").write_text(Path("a.json").read_text().replace("Test 1", "Test 2"))
    code, _, err = run("a.json", "b.json", "--max-regression", "5%")
    assert code == 4
    assert "environment.machine.cpu" in err


def test_hostile_names_stay_text(run: Run) -> None:
    a, b = pair(20, cv=0.001)
    name = "x|y`<b>*@all*[z]"
    hostile = record(a, msgspec.structs.replace(b, name=name, settings={"\x1bkey": "<script>|\n\x00"}, effective={}))
    path = save("run.json", hostile)
    _, out, _ = run(path, "--max-regression", "5%", "--markdown", "m.md", "--junit", "j.xml")
    assert "\x1b" not in out
    assert "\x00" not in out
    text = Path("m.md").read_text()
    assert "<b>" not in text.replace("\\<b>", "")
    assert "@all" not in text
    assert all(line.count("|") - line.count("\\|") in (0, 6, 7) for line in text.splitlines())
    assert ElementTree.parse("j.xml").getroot()[0].get("tests") == "1"


@pytest.mark.slow
def test_answers_without_torch(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    save_record(record(*pair(20)), path)
    program = (
        "import sys\nfrom omni_cli.cli.app import run\n"
        f"code = run(['compare', {str(path)!r}, '--max-regression', '5%', '--junit', {str(tmp_path / 'j.xml')!r}])\n"
        "print(int(code), *({'torch', 'vllm', 'diffusers', 'transformers', 'rich'} & set(sys.modules)))\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert result.stdout.splitlines()[-1].split()[1:] == [], result.stderr
    assert result.stdout.startswith("b (B) against a (A)")


def test_three_variants(run: Run) -> None:
    times = np.full((20, 2), 0.1)
    rng = np.random.default_rng(0)
    variants = [
        variant(name, times * np.exp(0.001 * rng.standard_normal((20, 2))) * factor, slots=slots)
        for name, factor, slots in (("n=1", 1.0, ABBA[0]), ("n=2", 1.0, ABBA[1]), ("n=3", 1.5, (4, 5)))
    ]
    path = save("run.json", record(*variants))
    code, out, err = run(path, "--max-regression", "5%")
    assert code == 1
    assert out.count("against n=1") == 2
    assert "n=3: e2e" in out
    assert err.count("error:") == 1


PIXEL = np.full((1, 1, 3), 100, np.uint8)


def keeping(pixels: np.ndarray, name: str, **fields: Any) -> str:
    kept = kept_outputs({"0.image.0": pixels}, None)
    return save(name, single(outputs=kept, output_sha256=hash_arrays({"0.image.0": pixels}), **fields))


def test_outputs_that_two_records_keep_are_compared_and_gated(run: Run, tmp_path: Path) -> None:
    grey = np.full((32, 48, 3), 100, np.uint8)
    a, b = keeping(grey, "a.json"), keeping(grey + np.uint8(10), "b.json", seed=1)
    code, out, _ = run(a, b, "--json")
    outputs = json.loads(out)["comparisons"][0]["outputs"]
    assert code == 0 and outputs["identical"] is False and outputs["max_abs_diff"] == 10
    assert outputs["psnr_db"] == pytest.approx(20 * np.log10(255 / 10)) and 0.9 < outputs["ssim"] < 1
    code, out, err = run(a, b, "--quality", "psnr_db>=40")
    assert code == 5 and "psnr 28.13 dB" in out and "psnr_db 28.13; it must be psnr_db>=40" in err
    assert run(a, b, "--quality", "psnr_db>=20")[0] == 0
    (tmp_path / "gate.yaml").write_text("version: 1\nquality: [psnr_db>=40, ssim>=0.1]\n")
    assert run(a, b, "--gate", "gate.yaml")[0] == 5
    assert run(a, b, "--gate", "gate.yaml", "--quality", "psnr_db>=20")[0] == 0, "an option overrides the file"
    assert run(a, a, "--gate", "gate.yaml")[0] == 0, "equal outputs have no distance"


def _bomb() -> bytes:
    """A PNG of 30,000 x 30,000 pixels, as far as its header says."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))


@pytest.mark.parametrize(
    ("kind", "data"), [("image", b"no image"), ("image", _bomb()), ("audio", b"RIFF"), ("video", encode_png(PIXEL))]
)
def test_a_damaged_output_of_a_record_is_one_error(run: Run, kind: Any, data: bytes) -> None:
    kept = (KeptOutput(name="0.image.0", kind=kind, data=data, frames=0 if kind == "video" else None),)
    whole = keeping(PIXEL, "a.json")
    damaged = save("b.json", single(outputs=kept, output_sha256="0" * 64, seed=1))
    code, out, err = run(whole, damaged)
    assert (code, out) == (2, "") and err.startswith("error: the output `0.image.0` of a record cannot be decoded: ")


def test_smaller_copies_of_outputs_pass_no_gate(run: Run) -> None:
    noise = np.random.default_rng(0).integers(0, 200, (512, 640, 3), dtype=np.uint8)
    a, b = keeping(noise, "a.json"), keeping(noise + np.uint8(10), "b.json", seed=1)
    code, out, _ = run(a, b)
    assert code == 0 and "of smaller copies" in out
    code, _, err = run(a, b, "--quality", "psnr_db>=20")
    assert code == 3 and "smaller copies" in err
    assert run(a, b, "--quality", "psnr_db>=40")[0] == 5


def test_a_record_that_failed_is_no_reference(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    path = save("bad.json", single(error="out of memory"))
    message = "error: variant `default` of `bad.json` failed: out of memory"
    assert run(path, "--self-check")[0::2] == (6, f"{message}\n\nhint: find out why, and measure it again\n")
    assert app.run(["bench", "--baseline", path]) == 6
    assert capsys.readouterr().err.startswith(message)
    assert app.run(["report", path, "--smaller-is-better", "values.json"]) == 6
    assert capsys.readouterr().err.startswith(message) and not Path("values.json").exists()
    # Its comparison with itself, as a page.
    code, out, _ = run(path, path, "--json")
    Path("compared.json").write_text(out)
    assert code == 6 and app.run(["report", "compared.json", "-o", "page.html"]) == 0
    assert "of A failed: out of memory." in Path("page.html").read_text()
