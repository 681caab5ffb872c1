"""Every internal of vLLM and transformers that this project overrides or reads: a version that changes one fails here
with a sentence, and not somewhere inside an engine."""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.seams import OVERRIDES, RUNNER, change_in, change_in_source, find, imported, list_seams, list_sources

import omni_cli
from omni_cli.engine.devices import NO_RAY_ON_CPU

SEAMS, SOURCES = tuple(list_seams()), tuple(list_sources())
LONGEST_SHARED_RUN = 3


@pytest.mark.parametrize(("where", "names", "use"), SEAMS, ids=[row[0].partition(":")[2] for row in SEAMS])
def test_seam_exists(where, names, use):
    change = change_in(where, names, use)
    assert change is None, change


def test_each_import_is_listed():
    """Compare imported objects, because vLLM exports some under several names."""
    listed = {id(part) for row in (*SEAMS, *SOURCES) for part in parts_of(row[0])}
    missing = []
    for path in sorted(Path(omni_cli.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "vllm":
                module = importlib.import_module(node.module)
                missing += [
                    f"{path.name}: {node.module}:{name.name}"
                    for name in node.names
                    if id(getattr(module, name.name)) not in listed
                ]
    assert not missing, "\n".join(missing)


def test_each_override_is_listed():
    listed = {id(find(row[0])) for row in (*SEAMS, *SOURCES)}
    missing = {
        f"{ours.__name__}: {home.__module__}:{home.__qualname__}.{name}"
        for ours, name, _, home in overrides()
        if id(vars(home)[name]) not in listed
    }
    assert not missing, "\n".join(sorted(missing))


def test_each_override_takes_the_parameters_of_vllms():
    changes = set()
    for ours, name, value, home in overrides():
        takes, given = inspect.signature(value).parameters, inspect.signature(vars(home)[name]).parameters
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values())
        if not takes_any and len(given) > len(takes):
            new = ", ".join(given.keys() - takes.keys())
            changes.add(f"{home.__module__}:{home.__qualname__}.{name} takes {new}, too, and {ours.__name__} does not")
    assert not changes, "\n".join(sorted(changes))


def overrides() -> Iterator[tuple[type, str, Any, type]]:
    """Yield methods of ours that override one of vLLM's, with the class that they would otherwise come from."""
    for cls in our_classes():
        for position, ours in enumerate(cls.__mro__):
            if not ours.__module__.startswith("omni_cli."):
                continue
            for name, value in vars(ours).items():
                home = next((base for base in cls.__mro__[position + 1 :] if name in vars(base)), object)
                if name.startswith("__") or not home.__module__.startswith("vllm."):
                    continue
                # Not those that a decorator of vLLM's has added.
                if inspect.isfunction(value) and value.__module__ == ours.__module__:
                    yield ours, name, value, home


def our_classes() -> Iterator[type]:
    """Yield our classes that derive from one of vLLM's."""
    for path in sorted(Path(omni_cli.__file__).parent.rglob("*.py")):
        if "from vllm" in path.read_text():
            name = ".".join(path.relative_to(Path(omni_cli.__file__).parent.parent).with_suffix("").parts)
            for cls in vars(importlib.import_module(name)).values():
                if inspect.isclass(cls) and any(base.__module__.startswith("vllm.") for base in cls.__mro__[1:]):
                    yield cls


def parts_of(where: str) -> Iterator[Any]:
    """Yield the module of a row, and everything on the path to its target."""
    module, _, path = where.partition(":")
    names = path.split(".")
    yield imported(module)
    for end in range(1, len(names) + 1):
        yield find(f"{module}:{'.'.join(names[:end])}")


@pytest.mark.parametrize(("where", "parts"), SOURCES, ids=[row[0].partition(":")[2] for row in SOURCES])
def test_attributes_are_set(where, parts):
    change = change_in_source(where, parts)
    assert change is None, change


def test_input_batch_lists_requests_in_batch_order():
    assert isinstance(find("vllm.v1.worker.gpu_input_batch:InputBatch.req_ids"), property)


def test_cpu_runner_is_the_gpu_runner():
    assert issubclass(find("vllm.v1.worker.cpu_model_runner:CPUModelRunner"), find(RUNNER)), (
        "CPUModelRunner does not derive from the V1 GPUModelRunner any more, so one mixin cannot serve both devices"
    )


def test_the_quoted_message_about_ray_on_a_cpu_is_vllms():
    platform = importlib.import_module("vllm.platforms.cpu").CpuPlatform
    said = "current platform {current_platform.device_name} does not support ray."
    assert not platform.ray_device_key, "vLLM can place ranks on Ray without CUDA devices now; we refuse that"
    assert said in inspect.getsource(importlib.import_module("vllm.v1.executor.ray_utils"))
    assert said.format(current_platform=platform) == NO_RAY_ON_CPU


@pytest.mark.parametrize(("ours", "theirs"), OVERRIDES)
def test_no_body_is_copied(ours, theirs):
    """Allow runs of a few equal statements, including names, between our module and the one it builds on."""
    mine, upstream = statements(ours), set(runs(statements(theirs)))
    shared = [run for run in runs(mine) if run in upstream]
    assert not shared, f"{ours} repeats {theirs}:\n" + "\n".join(shared[0])


def statements(module: str) -> list[str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(importlib.import_module(module))))
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines += [ast.unparse(statement) for statement in node.body]
            lines.append(f"end of {node.name} in {module}")
    return lines


def runs(lines: list[str]) -> list[tuple[str, ...]]:
    size = LONGEST_SHARED_RUN + 1
    return [tuple(lines[i : i + size]) for i in range(len(lines) - size + 1)]
