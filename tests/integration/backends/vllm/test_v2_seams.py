"""Where each seam moves when vLLM's V2 model runner replaces V1: a note per overridden hook, per attribute that is
read, and per method of our models that vLLM calls, checked to be complete."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.seams import MODEL_MOVES, MOVES, READS, STATE, change_in_place, find, list_seams, list_sources
from vllm.model_executor.models import interfaces, interfaces_base
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from omni_cli.backends.vllm.code_runner import CodeRunnerMixin
from omni_cli.backends.vllm.diffusion_runner import DiffusionRunnerMixin
from omni_cli.backends.vllm.runner_mixins import ARRunnerMixin, OmniRunnerMixin
from omni_cli.config.families import families, load

V1_MODULES = (
    "vllm.v1.worker.gpu_model_runner:",
    "vllm.v1.worker.gpu_input_batch:",
    "vllm.v1.worker.cpu_worker:",
    "vllm.v1.sample.sampler:",
    "vllm.compilation.cuda_graph:",
)


def model_methods() -> set[str]:
    """Return the methods of our models that vLLM declares, in its interfaces or in the class that we derive from."""
    declared = {name for module in (interfaces, interfaces_base) for cls in classes_of(module) for name in vars(cls)}
    found = set()
    for reference in {model for family in families().values() for model in family.models.values()}:
        bases = load(reference).__mro__
        known = declared.union({"load_weights"}, *(vars(base) for base in bases if base.__module__.startswith("vllm.")))
        ours = [base for base in bases if base.__module__.startswith("omni_cli.")]
        found |= {name for base in ours for name, value in vars(base).items() if inspect.isfunction(value)} & known
    return {name for name in found if not name.startswith("_")}


def classes_of(module: Any) -> Iterator[type]:
    return (value for value in vars(module).values() if inspect.isclass(value))


def overridden() -> set[str]:
    mixins = (OmniRunnerMixin, ARRunnerMixin, CodeRunnerMixin, DiffusionRunnerMixin)
    return {name for mixin in mixins for name, value in vars(mixin).items() if callable(value)} & set(
        dir(GPUModelRunner)
    )


def test_each_overridden_hook_has_a_note():
    assert overridden() == set(MOVES)


def test_each_method_of_a_model_has_a_note():
    assert model_methods() == set(MODEL_MOVES)


@pytest.mark.parametrize(
    ("method", "where"), [(name, where) for name in MODEL_MOVES for where in MODEL_MOVES[name][:2]]
)
def test_vllm_calls_the_method_there(method, where):
    call = "self.model(" if method == "forward" else f".{method}("
    assert call in inspect.getsource(find(where)), f"{where} calls `{method}` no more: the note has to say who does"


def test_each_part_of_the_runner_that_is_read_has_a_note():
    parts = {part for where, parts in list_sources() if where.startswith(V1_MODULES) for part in parts}
    found = {read[1] for part in parts if (read := re.match(r"self\.([a-z]\w*)", part))}
    classes = [
        names for where, names, _ in list_seams() if where.startswith(V1_MODULES) and inspect.isclass(find(where))
    ]
    found |= {name for names in classes for name in names if name[0] != "_"}
    assert found == set(READS)


PLACES = {where for where, _ in (*MOVES.values(), *READS.values())} | {f"{STATE}.remove_request"}


@pytest.mark.parametrize("where", sorted(PLACES))
def test_the_counterpart_exists(where):
    change = change_in_place(where)
    assert change is None, change


def test_the_plan_counts_the_seams():
    plan = (Path(__file__).parents[4] / "docs" / "runner-v2.md").read_text()
    for table, seams in (("MOVES", MOVES), ("MODEL_MOVES", MODEL_MOVES), ("READS", READS)):
        assert f"(`{table}`) | {len(seams)} |" in plan
