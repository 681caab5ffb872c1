"""Resolving models and checking folders, on files written by hand: none of this needs torch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from omni_cli.checkpoints.build import build_folder, cache_folder
from omni_cli.checkpoints.files import (
    check_checkpoint,
    count_parameters,
    read_model_kind,
    weight_files,
)
from omni_cli.checkpoints.hub import download, hub_cache_folder
from omni_cli.checkpoints.resolve import find_folder, resolve_model
from omni_cli.checkpoints.shards import shards_with_prefix
from omni_cli.core.errors import CheckpointError, OmniError, OutputError


def write_safetensors(path: Path, *, cut: int = 0, shape: tuple[int, ...] = (2, 3), name: str = "w") -> None:
    num_bytes = 4 * shape[0] * shape[1]
    header = json.dumps({name: {"dtype": "F32", "shape": shape, "data_offsets": [0, num_bytes]}}).encode()
    content = len(header).to_bytes(8, "little") + header + bytes(num_bytes)
    path.write_bytes(content[: len(content) - cut])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole transformers checkpoint, as far as headers tell."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": ["Qwen2_5OmniModel"]}))
    write_safetensors(folder / "model.safetensors")
    return folder


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    folder = tmp_path / "pipeline"
    for component in ("transformer", "scheduler"):
        (folder / component).mkdir(parents=True)
    index = {
        "_class_name": "QwenImagePipeline",
        "transformer": ["diffusers", "QwenImageTransformer2DModel"],
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "feature_extractor": [None, None],
    }
    (folder / "model_index.json").write_text(json.dumps(index))
    (folder / "transformer" / "config.json").write_text("{}")
    (folder / "scheduler" / "scheduler_config.json").write_text("{}")
    write_safetensors(folder / "transformer" / "diffusion_pytorch_model.safetensors")
    return folder


def test_a_folder_resolves_to_itself(folder: Path, pipeline: Path) -> None:
    assert resolve_model(str(folder)) == str(folder)
    assert resolve_model(str(pipeline)) == str(pipeline)
    assert read_model_kind(folder) == "Qwen2_5OmniModel"
    assert read_model_kind(pipeline) == "QwenImagePipeline"
    assert count_parameters(folder) == count_parameters(pipeline) == 6


def test_home_is_expanded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    assert resolve_model("~/model") == str(folder)


@pytest.mark.parametrize("repo", ["Qwen/Qwen2.5-Omni-3B", "a/b", "org_1/model.v2"])
def test_a_repo_id_is_in_no_folder(repo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_folder(repo) is None


@pytest.mark.parametrize(
    ("model", "hint"),
    [
        ("tiny-omni", "builtin:tiny-omni"),
        ("./Qwen/Qwen2.5-Omni-3B", "OWNER/NAME"),
        ("/no/such/folder", "OWNER/NAME"),
        ("", "builtin:"),
        ("builtin:tiny-omny", "builtin:tiny-omni"),
        ("builtin:", "builtin:tiny-omni"),
        ("x" * 5000, ""),
        ("a\0b", ""),
    ],
)
def test_an_unknown_model(model: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    for find in (find_folder, resolve_model):
        with pytest.raises(CheckpointError) as caught:
            find(model)
    assert hint in (caught.value.hint or "")


def test_a_file_is_no_model(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="is a file"):
        resolve_model(str(folder / "config.json"))


def _missing_shard(folder: Path) -> None:
    index = {"weight_map": {"w": "model.safetensors", "v": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _modular_without_component(folder: Path) -> None:
    spec = {"type_hint": ["diffusers", "AutoencoderKL"], "pretrained_model_name_or_path": "/gone", "subfolder": "vae"}
    index = {"_class_name": "ZImageModularPipeline", "vae": ["diffusers", "AutoencoderKL", spec]}
    (folder / "modular_model_index.json").write_text(json.dumps(index))


BREAKS = {
    "neither config.json": lambda folder: (folder / "config.json").unlink(),
    "has no component `vae`": _modular_without_component,
    "not valid JSON": lambda folder: (folder / "config.json").write_text('{"architectures": '),
    "config.json` is not a JSON object": lambda folder: (folder / "config.json").write_text("[]"),
    "does not name a model class": lambda folder: (folder / "config.json").write_text("{}"),
    "no weights": lambda folder: (folder / "model.safetensors").unlink(),
    "bytes instead of": lambda folder: write_safetensors(folder / "model.safetensors", cut=1),
    "not a safetensors file": lambda folder: (folder / "model.safetensors").write_bytes(b"\xff" * 64),
    "safetensors` is not a safetensors": lambda folder: (folder / "model.safetensors").write_bytes(b""),
    "Git LFS pointer": lambda folder: (folder / "model.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    ),
    "has no model-2.safetensors": _missing_shard,
    "no `weight_map`": lambda folder: (folder / "model.safetensors.index.json").write_text("{}"),
}


@pytest.mark.parametrize("message", BREAKS)
def test_a_broken_folder_is_an_error_that_names_the_fault(folder: Path, message: str) -> None:
    BREAKS[message](folder)
    with pytest.raises(CheckpointError, match=message) as caught:
        check_checkpoint(folder)
    assert caught.value.hint


def _index(folder: Path, *shards: str, kind: str = "model.safetensors") -> None:
    index = {"weight_map": {str(number): shard for number, shard in enumerate(shards)}}
    (folder / f"{kind}.index.json").write_text(json.dumps(index))


SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


@pytest.mark.parametrize("index", [None, "pytorch_model.bin", "model.safetensors"])
def test_what_is_beside_the_weights_is_neither_used_nor_checked(folder: Path, index: str | None) -> None:
    """A LoRA adapter, shards of an earlier save, and the index of a format that was not downloaded."""
    for stale in ("adapter_model.safetensors", *SHARDS):
        (folder / stale).write_bytes(b"cut")
    if index is not None:
        _index(folder, "model.safetensors" if index == "model.safetensors" else "pytorch_model-1.bin", kind=index)
    check_checkpoint(folder)
    assert [file.name for file in weight_files(folder)] == ["model.safetensors"]


def test_shards_without_an_index_and_those_that_it_names(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    for name, shard in zip(("thinker.a", "talker.b"), SHARDS, strict=True):
        write_safetensors(folder / shard, name=name)
    assert [file.name for file in weight_files(folder)] == [*SHARDS]
    (folder / "model-00003-of-00003.safetensors").write_bytes(b"of an earlier save")
    _index(folder, *SHARDS)
    assert [file.name for file in weight_files(folder)] == [*SHARDS]
    check_checkpoint(folder)
    # What a shard holds decides, and not what the index says of it.
    assert shards_with_prefix(str(folder), "talker.") == [SHARDS[1]]
    assert shards_with_prefix(str(folder), "token2wav.") is None


def test_an_adapter_alone_is_no_model(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match="has no weights"):
        check_checkpoint(folder)


@pytest.mark.parametrize("length", range(0, 72, 7))
def test_a_cut_weight_file_is_found_wherever_it_is_cut(folder: Path, length: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        check_checkpoint(folder)


def test_a_pipeline_without_a_component_or_its_weights(pipeline: Path) -> None:
    weights = pipeline / "transformer" / "diffusion_pytorch_model.safetensors"
    weights.unlink()
    with pytest.raises(CheckpointError, match="transformer` has no weights"):
        check_checkpoint(pipeline)
    (pipeline / "scheduler" / "scheduler_config.json").unlink()
    (pipeline / "scheduler").rmdir()
    write_safetensors(weights)
    with pytest.raises(CheckpointError, match="has no component `scheduler`"):
        check_checkpoint(pipeline)
    # This class makes its own scheduler, which diffusers does not save.
    index = json.loads((pipeline / "model_index.json").read_text())
    (pipeline / "model_index.json").write_text(json.dumps({**index, "_class_name": "LongCatAudioDiTPipeline"}))
    check_checkpoint(pipeline)


def test_a_folder_one_level_up_gets_a_hint(folder: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        check_checkpoint(folder.parent)
    assert str(folder) in caught.value.hint


def test_the_cache_follows_xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "omni-cli" / "checkpoints"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert cache_folder() == Path("/home/somebody/.cache/omni-cli/checkpoints")


def test_a_user_without_a_home_folder_is_asked_for_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container with a number for a user."""

    def unknown(_uid: int) -> None:
        raise KeyError("no entry")

    monkeypatch.setattr("pwd.getpwuid", unknown)
    for name in ("HOME", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    for asks in (cache_folder, hub_cache_folder, lambda: download("a/b")):
        with pytest.raises(OmniError, match="no home folder") as raised:
            asks()
        assert "XDG_CACHE_HOME" in raised.value.hint and "HOME" in raised.value.hint
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert hub_cache_folder() == tmp_path / "hub"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder().is_relative_to(tmp_path)


def test_a_target_that_cannot_be(tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("x")
    for target in (occupied, occupied / "below", tmp_path / ("x" * 300)):
        with pytest.raises(OutputError) as caught:
            build_folder("tiny-omni", target, seed=0)
        assert caught.value.hint
    assert occupied.read_text() == "x"
    assert list(tmp_path.iterdir()) == [occupied]


SOURCES = {
    "family/__init__.py": "",
    "family/checkpoint/builder.py": "",
    "family/checkpoint/sizes.py": "",
    "family/stages.py": "",
    "other/builder.py": "",
}


@pytest.mark.parametrize("changed", SOURCES)
def test_a_changed_builder_builds_again(tmp_path: Path, changed: str) -> None:
    """The cached folder's name covers the modules beside the builder, and no others of its package."""
    for name, source in SOURCES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(source)
    code = (
        "import sys, types\n"
        "from omni_cli.config import families\n"
        "from omni_cli.checkpoints import build\n"
        "built = types.SimpleNamespace(builtins={'toy': 'family.checkpoint.builder:build'})\n"
        "build.builtins = lambda: {'toy': built}\n"
        "print(build.cached_folder('toy'))\n"
    )

    def cache_path() -> str:
        environment = os.environ | {"PYTHONPATH": str(tmp_path)}
        return subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        ).stdout

    before = cache_path()
    (tmp_path / changed).write_text(f"# changed\n{SOURCES[changed]}")
    assert (cache_path() != before) == changed.startswith("family/checkpoint/")


def test_resolving_imports_no_engine(folder: Path) -> None:
    code = (
        "import sys\n"
        "from omni_cli.checkpoints.files import read_model_kind\n"
        "from omni_cli.checkpoints.resolve import find_folder\n"
        "find_folder(sys.argv[1]); read_model_kind(sys.argv[1]); find_folder('builtin:tiny-omni')\n"
        "import omni_cli.cli.models\n"
        "print([name for name in ('torch', 'transformers', 'vllm', 'diffusers', 'numpy') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"
