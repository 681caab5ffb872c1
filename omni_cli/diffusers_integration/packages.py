"""Packages that a pipeline needs beside torch, diffusers and transformers, read from diffusers' source."""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from omni_cli.diffusers_integration.signature import source_of_class
from omni_cli.errors import CheckpointError

# Names under which a module is imported and installed, where they differ from diffusers' name for it.
_MODULES = {"opencv": "cv2", "onnx": "onnxruntime"}
_INSTALLED_AS = {"cv2": "opencv-python", "k_diffusion": "k-diffusion", "note_seq": "note-seq", "bs4": "beautifulsoup4"}
_PLACEHOLDER = re.compile(r"^class (\w+)\(metaclass=DummyObject\):\s+_backends = \[([^]]*)\]", re.MULTILINE)


def check_packages(class_names: Iterable[str]) -> None:
    """Raise `CheckpointError` for a class of a pipeline's that needs a package which is not installed."""
    for name in class_names:
        for module in (*_backends().get(name, ()), *_unguarded_imports(name)):
            if importlib.util.find_spec(module) is None:
                package = _INSTALLED_AS.get(module, module)
                raise CheckpointError(
                    f"{name} needs the package `{package}`, which is not installed", hint=f"pip install {package}"
                )


@functools.cache
def _backends() -> Mapping[str, tuple[str, ...]]:
    """The modules that each class of diffusers needs: those for which it has a placeholder instead."""
    spec = importlib.util.find_spec("diffusers")
    folder = None if spec is None or spec.origin is None else Path(spec.origin).parent / "utils"
    found = {}
    for file in [] if folder is None else sorted(folder.glob("dummy_*_objects.py")):
        for name, words in _PLACEHOLDER.findall(file.read_text(encoding="utf-8")):
            found[name] = tuple(_MODULES.get(word, word) for word in re.findall(r"\w+", words))
    return found


@functools.cache
def _unguarded_imports(class_name: str) -> tuple[str, ...]:
    """Modules that a pipeline's file imports only where they are installed, and then uses everywhere."""
    source = source_of_class(class_name)
    return () if source is None else tuple(_conditional_imports(source))


def _conditional_imports(source: str) -> Iterator[str]:
    for node in ast.parse(source).body:
        is_guard = isinstance(node, ast.If) and not node.orelse and isinstance(node.test, ast.Call)
        # Where the file asks a second time, it does without.
        if is_guard and f"not {ast.unparse(node.test)}" not in source:  # type: ignore[attr-defined]
            for line in node.body:  # type: ignore[attr-defined]
                if isinstance(line, ast.Import):
                    yield from (alias.name.partition(".")[0] for alias in line.names)
