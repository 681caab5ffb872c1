"""The wheel and the sdist: their contents, that they are the same each time, and the errors of an installation without
extras."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from omni_cli import __version__

ROOT = Path(__file__).parents[2]
NAME = f"omni_cli-{__version__}"

pytestmark = pytest.mark.slow


def built(folder: Path) -> tuple[Path, Path]:
    """Return the wheel, which is built from the sdist, and the sdist."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    return folder / f"{NAME}-py3-none-any.whl", folder / f"{NAME}.tar.gz"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return built(tmp_path_factory.mktemp("dist"))


def test_it_is_the_same_each_time_and_a_package_index_takes_it(files: tuple[Path, Path], tmp_path: Path) -> None:
    again = built(tmp_path)
    assert [hashlib.sha256(file.read_bytes()).digest() for file in files] == [
        hashlib.sha256(file.read_bytes()).digest() for file in again
    ]
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *map(str, files)], check=True)


def test_what_it_holds(files: tuple[Path, Path]) -> None:
    """Everything that git knows of the package, the profiles, and the commit."""
    asked = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "omni_cli", "profiles"], check=True, capture_output=True, text=True
    )
    sources = set(asked.stdout.split())
    wheel, sdist = files
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        commit = archive.read("omni_cli/COMMIT").decode().strip()
    profiles = {name.replace("profiles/", "omni_cli/profiles/", 1) for name in sources if name.startswith("profiles/")}
    packaged = {name for name in sources if name.startswith("omni_cli/")} | profiles
    assert names == packaged | {"omni_cli/COMMIT"}
    assert len(commit) == 40
    with tarfile.open(sdist) as archive:
        inside = {member.name.partition("/")[2] for member in archive.getmembers()}
    assert sources <= inside and not {name for name in inside if name.startswith(("tests", "benchmarks", ".ci"))}


def test_without_extras_it_names_what_to_install(files: tuple[Path, Path], tmp_path: Path) -> None:
    """The libraries of this environment are not visible, except those that omni itself requires."""
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    installed = subprocess.run([python, "-m", "pip", "install", "-q", files[0]], capture_output=True, text=True)
    if installed.returncode:
        pytest.skip(f"pip cannot install what it requires: {installed.stderr[-300:]}")

    def omni(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([python.with_name("omni"), *words], capture_output=True, text=True, cwd=tmp_path)

    assert omni("--version").stdout.startswith(f"omni {__version__} (")
    assert "tiny-omni" in omni("profiles", "list").stdout
    for words in (["generate", "hello"], ["serve"], ["bench"], ["compare", "a", "b"], ["verify"], ["history", "show"]):
        said = omni(*words)
        assert said.returncode == 6 and "which is not installed" in said.stderr, words
        assert "omni doctor --install" in said.stderr, words
    commands = omni("doctor", "--install").stdout
    assert f"omni-cli[cpu]=={__version__}" in commands or f"omni-cli[cuda]=={__version__}" in commands
