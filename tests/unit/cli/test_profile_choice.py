"""A command without `--profile`: the profile comes from the checkpoint, and stderr names it."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from omni_cli.cli import app
from omni_cli.cli.profile_choice import choose_profile, derive
from omni_cli.config.families import Machine
from omni_cli.config.loader import check_profile, load_profile

Run = Callable[..., tuple[int, str, str]]
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "dtype": "bfloat16",
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
}


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni_cli.cli.profile_choice.this_machine", lambda: Machine("cpu"))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run_command_line(*argv: str) -> tuple[int, str, str]:
        code = app.run(list(argv))
        captured = capsys.readouterr()
        return int(code), captured.out, captured.err

    return run_command_line


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """A language model's folder, as far as headers tell."""
    folder = tmp_path / "smol"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    return folder


def test_a_named_profile_is_used_and_the_default_only_without_a_model() -> None:
    assert choose_profile("tiny-image", "anything") == "tiny-image"
    assert choose_profile(None, None) == "tiny-omni"


def test_a_model_of_a_bundled_profile_has_that_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert choose_profile(None, "builtin:tiny-image") == "tiny-image"
    assert capsys.readouterr().err == "profile: tiny-image, which is for builtin:tiny-image\n"


def test_a_language_model_gets_a_profile_of_its_own(llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = load_profile(choose_profile(None, str(llama)))
    (stage,) = config.stages
    assert (stage.max_num_seqs, stage.kv_cache_memory_bytes) == (8, None)
    assert (config.model, config.dtype, stage.max_model_len) == (str(llama), "bfloat16", 8192)
    first, second = capsys.readouterr().err.splitlines()
    assert first == "profile: a language model, derived from the checkpoint for this machine: model"
    assert second == f"hint: `omni profiles create {llama} -o FILE` writes it"
    choose_profile(None, str(llama), quiet=True)
    assert capsys.readouterr().err == ""


def test_a_derived_profile_is_on_no_disk_and_other_processes_can_read_it(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = choose_profile(None, str(llama), quiet=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["smol"]
    read = subprocess.run(["cat", path], capture_output=True, text=True, check=True)
    assert yaml.safe_load(read.stdout) == derive(str(llama))


def test_a_stage_with_the_name_of_a_key_is_in_no_options_way(llama: Path) -> None:
    path = choose_profile(None, str(llama))
    config = load_profile(path, ["model=elsewhere", "model.max_num_seqs=3"])
    assert (config.model, config.stage("model").max_num_seqs) == ("elsewhere", 3)
    assert config.dtype == "bfloat16"


def test_create_prints_the_output_of_show_and_writes_it_once(run: Run, llama: Path, tmp_path: Path) -> None:
    code, out, err = run("profiles", "create", str(llama))
    assert (code, err) == (0, "")
    assert yaml.safe_load(out) == derive(str(llama))
    path = tmp_path / "mine.yaml"
    code, printed, err = run("profiles", "create", str(llama), "-o", str(path))
    assert (code, printed, path.read_text()) == (0, "", out)
    assert str(path) in err
    assert check_profile(path) == ()
    code, _, err = run("profiles", "create", str(llama), "-o", str(path))
    assert code == 2
    assert f"`{path}` exists already" in err
    code, printed, _ = run("profiles", "create", str(llama), "--json")
    assert json.loads(printed) == {"schema": "omni.profiles.create/1", "profile": derive(str(llama)), "path": None}


@pytest.mark.parametrize("argv", [("profiles", "show"), ("doctor",)])
def test_other_commands_derive_the_same_profile(run: Run, llama: Path, argv: tuple[str, ...]) -> None:
    _, out, err = run(*argv, "--model", str(llama))
    assert "profile: a language model, derived from the checkpoint" in err
    assert "smol" in out
    assert "tiny-omni" not in out


def test_a_repo_needs_only_its_configuration(tmp_path: Path, llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    repo = tmp_path / "hub/models--someone--smol"
    snapshot = repo / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs/main").write_text("0" * 40)
    (snapshot / "config.json").write_text(json.dumps(LLAMA))
    data = derive("someone/smol")
    assert (data["name"], data["model"]) == ("smol", "someone/smol")
    assert data["stages"] == derive(str(llama))["stages"]


def test_show_plans_the_memory_in_comments(run: Run, llama: Path) -> None:
    code, out, _ = run("profiles", "show", "--model", str(llama))
    assert code == 0
    assert "kv_cache_memory_bytes" not in yaml.safe_load(out)["stages"]["model"]
    header, row = [line for line in out.splitlines() if line.startswith("# ")][1:]
    assert header.split() == ["#", "STAGE", "DEVICE", "WEIGHTS", "KV", "CACHE", "OTHER", "(ESTIMATE)"]
    # Keys and values of 30 layers, 3 heads, 64 numbers of 2 bytes each: 23,040 bytes per token, 8 requests of 8,192.
    assert "1.4 GiB" in row


def test_a_folder_that_is_not_a_checkpoint(run: Run, tmp_path: Path) -> None:
    code, out, err = run("generate", "--model", str(tmp_path), "hello")
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
