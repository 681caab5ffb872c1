"""`omni profiles list|show|validate|schema`, as a user calls them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from omni_cli.cli import app
from omni_cli.config.bundled import bundled_data, bundled_profiles
from omni_cli.config.loader import load_bundled, load_profile

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `omni profiles ...` in an empty folder; (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run_command_line(*argv: str) -> tuple[int, str, str]:
        code = app.run(["profiles", *argv])
        captured = capsys.readouterr()
        return int(code), captured.out, captured.err

    return run_command_line


def test_list_is_an_aligned_table(run: Run) -> None:
    code, out, err = run("list")
    assert (code, err) == (0, "")
    header, *rows = out.splitlines()
    assert header.split() == ["NAME", "STAGES", "DESCRIPTION"]
    assert [row.split()[0] for row in rows] == list(bundled_profiles())
    for column in ("STAGES", "DESCRIPTION"):
        start = header.index(column)
        assert all(row[start - 2 : start] == "  " and row[start] != " " for row in rows)


def test_list_as_json(run: Run) -> None:
    code, out, err = run("list", "--json")
    document = json.loads(out)
    assert (code, err, document["schema"]) == (0, "", "omni.profiles.list/1")
    tiny = next(entry for entry in document["profiles"] if entry["name"] == "tiny-omni")
    assert tiny["model"] == "builtin:tiny-omni"
    assert tiny["stages"][2] == {"name": "token2wav", "kind": "diffusion"}
    assert Path(tiny["path"]).is_file()


def test_show_prints_a_profile_with_overrides_applied(run: Run) -> None:
    options = ["--set", "thinker.sampling.temperature=0.5", "--model", "./ckpt", "--seed", "3"]
    code, out, err = run("show", "tiny-omni", *options)
    assert (code, err) == (0, "")
    Path("shown.yaml").write_text(out)
    assert load_profile("shown.yaml") == load_profile(
        "tiny-omni", ["thinker.sampling.temperature=0.5"], model="./ckpt", seed=3
    )
    assert run("show", "-p", "tiny-omni", *options) == (0, out, "")
    assert run("validate", "shown.yaml") == (0, "shown.yaml: ok\n", "")


def test_show_as_json(run: Run) -> None:
    code, out, err = run("show", "tiny-image", "--json", "--trust-remote-code")
    document = json.loads(out)
    assert (code, err, document["schema"]) == (0, "", "omni.profiles.show/1")
    assert document["profile"]["stages"]["image"]["num_inference_steps"] == 4
    assert document["trust_remote_code"] is True


def test_show_rejects_two_names(run: Run) -> None:
    code, out, err = run("show", "tiny-omni", "--profile", "tiny-image")
    assert (code, out) == (2, "")
    assert err.startswith("error: the profile is given twice")


def test_a_wrong_override(run: Run) -> None:
    code, out, err = run("show", "--set", "thinkr.max_num_seqs=2", "--json")
    assert code == 2
    assert err == ("error: --set thinkr.max_num_seqs=2: unknown stage `thinkr`\nhint: did you mean `thinker`?\n")
    error = json.loads(out)["error"]
    assert error["kind"] == "profile"
    assert error["diagnostics"] == [
        {
            "source": "--set thinkr.max_num_seqs=2",
            "line": None,
            "column": None,
            "message": "unknown stage `thinkr`",
            "hint": "did you mean `thinker`?",
        }
    ]


def test_validate_shows_every_mistake_of_every_file(run: Run) -> None:
    tiny = bundled_profiles()["tiny-omni"].read_text()
    Path("good.yaml").write_text(tiny)
    Path("a.yaml").write_text(tiny.replace("version: 1", "version: 3").replace("input: thinker", "input: x"))
    Path("b.yaml").write_text("a: [1")
    code, out, err = run("validate", "good.yaml", "a.yaml", "b.yaml", "nobody")
    assert code == 2
    assert out == "good.yaml: ok\n"
    assert err.count("error: ") == 4
    places = ["a.yaml:2:10: invalid value for `version`", "a.yaml:22:12: `input` of stage `talker`"]
    for text in (*places, "b.yaml:1:6: not valid YAML", "no profile named `nobody`"):
        assert f"error: {text}" in err


def test_validate_as_json(run: Run) -> None:
    Path("a.yaml").write_text("version: 1\nname: [\n")
    Path("good.yaml").write_text(bundled_profiles()["tiny-image"].read_text())
    code, out, _ = run("validate", "a.yaml", "good.yaml", "--json")
    assert code == 2
    wrong, good = json.loads(out)["profiles"]
    assert (wrong["path"], wrong["valid"], len(wrong["diagnostics"])) == ("a.yaml", False, 1)
    assert wrong["diagnostics"][0]["line"] == 2
    assert good == {"path": "good.yaml", "valid": True, "diagnostics": []}


def test_validate_needs_a_file(run: Run) -> None:
    code, _, err = run("validate")
    assert code == 2
    assert err.startswith("error: missing argument")


def test_schema_is_one_json_document(run: Run) -> None:
    code, out, err = run("schema")
    assert (code, err) == (0, "")
    assert json.loads(out)["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_the_quick_list_is_that_of_the_loaded_profiles() -> None:
    loaded = {
        name: (config.name, config.description, config.model, config.dtype, [stage.name for stage in config.stages])
        for name, config in load_bundled().items()
    }
    keys = ("name", "description", "model", "dtype")
    listed = {name: (*(data[key] for key in keys), list(data["stages"])) for name, data in bundled_data().items()}
    assert listed == loaded
    kinds = [keys["kind"] for data in bundled_data().values() for keys in data["stages"].values()]
    assert kinds == [stage.kind for config in load_bundled().values() for stage in config.stages]
