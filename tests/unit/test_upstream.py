"""`scripts/upstream.py`: its tests exist, and a failed one becomes a line of its page; its workflow runs it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def upstream() -> ModuleType:
    sys.path.insert(0, str(ROOT / "scripts"))
    spec = importlib.util.spec_from_file_location("upstream", ROOT / "scripts" / "upstream.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path.remove(str(ROOT / "scripts"))
    return module


def test_its_tests_exist(upstream: ModuleType) -> None:
    files = [ROOT / upstream.INTEGRATION / file for files in upstream.TESTS.values() for file in files]
    assert all(file.is_file() for file in files)
    references = set((ROOT / upstream.INTEGRATION).glob("test_*reference.py"))
    assert references <= set(files)


@pytest.mark.slow
def test_a_failed_test_is_a_line_of_the_page(upstream: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "test_seam.py"
    path.write_text(
        "import pytest\n"
        "def test_kept(): pass\n"
        "def test_gone(): assert False, 'Scheduler.old is gone; near it: new\\nmore'\n"
        "@pytest.mark.skip\ndef test_skipped(): pass\n"
        "@pytest.fixture\ndef broken(): raise ValueError('cannot load')\n"
        "def test_broken(broken): pass\n"
    )
    count, failures = upstream.run_tests(sys.executable, [str(path)])
    assert count == 3
    assert failures[0] == "- `test_gone`: Scheduler.old is gone; near it: new"
    assert "cannot load" in failures[1] and failures[1].startswith("- `test_broken`: ")


def test_the_workflow_runs_it_nightly(upstream: ModuleType) -> None:
    workflow = yaml.safe_load((ROOT / "docs" / "github-actions-upstream.yml").read_text())
    assert list(workflow[True]) == ["schedule"]  # YAML 1.1 reads the key `on` as true
    runs = [step.get("run", "") for step in workflow["jobs"]["upstream"]["steps"]]
    assert any("scripts/upstream.py --page" in run for run in runs) and "--page" in (upstream.__doc__ or "")
