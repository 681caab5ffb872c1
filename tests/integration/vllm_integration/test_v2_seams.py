"""Where each seam moves when vLLM's V2 model runner replaces V1: a note per overridden hook, checked to be complete."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from omni_cli.vllm_integration.code_runner import CodeRunnerMixin
from omni_cli.vllm_integration.runner_mixins import ARRunnerMixin, DiffusionRunnerMixin, OmniRunnerMixin

V2 = "vllm.v1.worker.gpu"
RUNNER = f"{V2}.model_runner:GPUModelRunner"
STATE = f"{V2}.model_states.interface:ModelState"
GRAPHS = f"{V2}.cudagraph_utils:ModelCudaGraphManager"

# V1 hook: (V2 counterpart, what moves there)
MOVES = {
    "__init__": (f"{RUNNER}.__init__", "payloads and counters"),
    "_update_states": (f"{STATE}.add_request", "decoding of payloads; forgetting is in `remove_request`"),
    "_init_mrope_positions": (f"{STATE}.add_request", "positions that came with a request"),
    "_calc_mrope_positions": (f"{STATE}.prepare_inputs", "such positions of tokens after the prompt"),
    "_prepare_inputs": (f"{RUNNER}.prepare_inputs", "the spans of a step, from `InputBatch`"),
    "_model_forward": (f"{STATE}.prepare_inputs", "conditions, as inputs of the model; no graph replays a hook"),
    "sample_tokens": (f"{RUNNER}.sample_tokens", "hidden states beside the tokens"),
    "_sample": (f"{RUNNER}.sample", "the code predictor, between the sampled token and its output"),
    "_pool": (f"{RUNNER}.pool", "one tensor per request of a diffusion"),
    "execute_model": (f"{RUNNER}.execute_model", "outputs of the last pipeline rank"),
    "initialize_kv_cache": (f"{RUNNER}.initialize_kv_cache", "rows of cached blocks"),
    "load_model": (f"{RUNNER}.load_model", "the diffusion's entry point and who fills conditions"),
    "capture_model": (
        f"{GRAPHS}.capture",
        "captured graphs; replays are those of `run_fullgraph`",
    ),
}


def overridden() -> set[str]:
    mixins = (OmniRunnerMixin, ARRunnerMixin, CodeRunnerMixin, DiffusionRunnerMixin)
    return {name for mixin in mixins for name, value in vars(mixin).items() if callable(value)} & set(
        dir(GPUModelRunner)
    )


def test_each_overridden_hook_has_a_note():
    assert overridden() == set(MOVES)


@pytest.mark.parametrize("where", sorted({where for where, _ in MOVES.values()} | {f"{STATE}.remove_request"}))
def test_the_counterpart_is_there(where):
    module, _, path = where.partition(":")
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        assert hasattr(found, name), f"{where} is gone: the note has to say where its part moved"
        found = getattr(found, name)
