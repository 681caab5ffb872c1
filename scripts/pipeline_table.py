"""Check every pipeline class of diffusers: the plain call beside omni's, tensor by tensor.

    python scripts/pipeline_table.py [--write] [--jobs N] [CLASS...]

Prints a line per class as it ends. `--write` updates docs/pipelines.md, with names only their rows; without names, all
classes are checked, which takes about ten minutes on two cores and 2 GiB. Exit code 0: the page is up to date; 1: it is
not.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

from omni_cli.core.compat.libraries import prepare_libraries

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "pipelines.md"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("classes", nargs="*", metavar="CLASS")
    parser.add_argument("--write", action="store_true", help="Update the page.")
    parser.add_argument("--jobs", type=int, default=2, help="Classes at a time. Default: 2.")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests"))
    prepare_libraries()
    table, page = _tests("table"), _tests("page")
    before = PAGE.read_text() if PAGE.is_file() else ""
    rows = page.rows_of(before) if options.classes else {}
    names = options.classes or page.classes()
    for number, row in enumerate(table.check_all(names, options.jobs), 1):
        sys.stdout.write(f"{number:3}/{len(names)} {row.name:50} {row.verdict:20} {row.reason}\n")
        sys.stdout.flush()
        rows[row.name] = row
    text = page.page(rows.values())
    if options.write:
        PAGE.write_text(text)
    return 0 if options.write or before == text else 1


def _tests(name: str) -> Any:
    """A module of the tests, which `omni` is installed without."""
    return importlib.import_module(f"support.tiny_pipelines.{name}")


if __name__ == "__main__":
    sys.exit(main())
