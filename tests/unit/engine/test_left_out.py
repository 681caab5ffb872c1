"""Modules that are left out of the imports for all stages: who needs one later has it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from omni_cli.engine.process.preload import left_out

FUNCTIONS = {"late_package": "double", "late_package.inner": "treble", "not_installed.inner": "halve"}
TRACES: dict[str, str | None] = {"late_traces": None}


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    inner = tmp_path / "late_package" / "inner"
    inner.mkdir(parents=True)
    (inner.parent / "__init__.py").write_text("VERSION = 7\ndef double(x, *, plus=0): return 2 * x + plus\n")
    (inner / "__init__.py").write_text("class Kind: pass\ndef treble(x): return 3 * x\n")
    (inner / "part.py").write_text("from . import Kind\nfrom late_package.inner import treble\nNINE = treble(3)\n")
    (tmp_path / "late_traces.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.startswith("late_")]:
        del sys.modules[name]


def loaded() -> set[str]:
    return {name for name in sys.modules if name.startswith(("late_", "not_installed"))}


def test_a_function_works_afterwards_and_imports_its_module_when_it_is_called() -> None:
    with left_out(FUNCTIONS):
        import late_package as whole  # type: ignore[import-not-found]
        from late_package.inner import treble  # type: ignore[import-not-found]

        assert importlib.util.find_spec("late_package").name == "late_package"
        assert not hasattr(whole, "__file__"), "asked for, it is not imported"
    assert loaded() == set()
    assert (treble(2), loaded()) == (6, {"late_package", "late_package.inner"})
    assert whole.double(4, plus=1) == 9
    assert sys.modules["late_package"].__file__ is not None


def test_whatever_else_is_read_is_the_modules_own_at_once() -> None:
    with left_out(FUNCTIONS):
        import late_package
        from late_package.inner import Kind

        assert late_package.VERSION == 7
        assert Kind is sys.modules["late_package.inner"].Kind
    assert loaded() == {"late_package", "late_package.inner"}, "they stay"
    assert late_package.double(1) == 2


def test_a_submodule_can_be_imported() -> None:
    with left_out(FUNCTIONS):
        from late_package.inner.part import NINE, Kind  # type: ignore[import-not-found]
    assert NINE == 9
    assert Kind is importlib.import_module("late_package.inner").Kind


def test_what_has_no_function_or_is_not_installed_cannot_be_imported_within() -> None:
    with left_out(FUNCTIONS | TRACES):
        for name in ("late_traces", "not_installed.inner"):
            with pytest.raises(ImportError):
                importlib.import_module(name)
    importlib.import_module("late_traces")
    assert loaded() == {"late_traces"}


def test_imports_that_fail_leave_no_module_out() -> None:
    with pytest.raises(ValueError), left_out(FUNCTIONS | TRACES):
        raise ValueError
    assert loaded() == set()


def test_what_is_imported_already_stays() -> None:
    module = importlib.import_module("late_package")
    with left_out(FUNCTIONS | {"late_package": None}):
        assert importlib.import_module("late_package") is module
    assert sys.modules["late_package"] is module
