"""Write requirements/cpu.txt and requirements/cuda.txt: the exact versions that scripts/install.py installs.

    python3 scripts/lock.py [--upgrade] [--torch-links URL]

Needs uv (`pip install uv`). Resolves pyproject.toml with all extras, for Python 3.11 on Linux and x86-64. Locked
versions stay where pyproject.toml allows them; `--upgrade` takes the newest releases instead.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from install import LOCKS, ROOT, extras, locked, pinned, required

RESOLVE = (
    *("uv", "pip", "compile", "--quiet", "--no-annotate", "--no-header"),
    *("--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_28"),
)
HEADER = "# Written by scripts/lock.py: versions for Python 3.11 on Linux and x86-64; elsewhere some do not apply.\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--upgrade", action="store_true", help="take the newest releases that pyproject.toml allows")
    parser.add_argument(
        "--torch-links",
        default="https://download.pytorch.org/whl/cpu/torch/",
        metavar="URL",
        help="a page or a folder with torch's CPU build",
    )
    options = parser.parse_args()
    upgrade = ["--upgrade"] if options.upgrade else []
    lock("cpu", ["--find-links", options.torch_links, *upgrade])
    # Of what this project itself requires, both have the same version.
    with tempfile.TemporaryDirectory() as folder:
        same = Path(folder, "same.txt")
        versions = locked("cpu")
        same.write_text("".join(f"{name}=={versions[name]}\n" for name in required() if name in versions))
        lock("cuda", ["--constraint", str(same), *upgrade])
    return 0


def lock(extra: str, arguments: list[str]) -> None:
    """Resolve everything that an environment with `extra` may hold, and write it without the builds' suffixes."""
    other = {"cpu": "cuda", "cuda": "cpu"}[extra]
    names = [word for name in sorted(set(extras()) - {other}) for word in ("--extra", name)]
    file = LOCKS / f"{extra}.txt"
    # uv reads the file's versions first; torch's CPU build is another version than PyPI's to it.
    command = [*RESOLVE, *names, *arguments, "pyproject.toml", "--output-file", str(file)]
    subprocess.run(command, check=True, cwd=ROOT)
    file.write_text(HEADER + file.read_text().replace(f"torch=={pinned('torch')}+cpu", f"torch=={pinned('torch')}"))


if __name__ == "__main__":
    sys.exit(main())
