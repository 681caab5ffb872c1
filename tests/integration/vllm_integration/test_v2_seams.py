"""Where each seam moves when vLLM's V2 model runner replaces V1: a note per overridden hook, and per method of our
models that vLLM calls, checked to be complete."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from typing import Any

import pytest
from vllm.model_executor.models import interfaces, interfaces_base
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from omni_cli.families import families, load
from omni_cli.vllm_integration.code_runner import CodeRunnerMixin
from omni_cli.vllm_integration.diffusion_runner import DiffusionRunnerMixin
from omni_cli.vllm_integration.runner_mixins import ARRunnerMixin, OmniRunnerMixin

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
    "_model_forward": (f"{STATE}.prepare_inputs", "input embeddings, as inputs of the model; no graph replays a hook"),
    "sample_tokens": (f"{RUNNER}.sample_tokens", "hidden states beside the tokens"),
    "_sample": (f"{RUNNER}.sample", "the code predictor, after the token"),
    "_pool": (f"{RUNNER}.pool", "one tensor per request of a diffusion"),
    "execute_model": (f"{RUNNER}.execute_model", "outputs of the last pipeline rank"),
    "_dummy_run": (f"{RUNNER}._dummy_run", "taking Triton's cache back"),
    "_dummy_sampler_run": (f"{RUNNER}._dummy_sampler_run", "skipping it where nothing is measured"),
    "initialize_kv_cache": (f"{RUNNER}.initialize_kv_cache", "rows of cached blocks"),
    "load_model": (f"{RUNNER}.load_model", "the diffusion's entry point, who fills input embeddings, the loader"),
    "capture_model": (
        f"{GRAPHS}.capture",
        "captured graphs; replays are those of `run_fullgraph`, and nothing is unfrozen after it",
    ),
}

V1_RUNNER = "vllm.v1.worker.gpu_model_runner:GPUModelRunner"
LOADER = "vllm.model_executor.model_loader.default_loader:DefaultModelLoader"
THINKER = "vllm.model_executor.models.qwen3_omni_moe_thinker:Qwen3OmniMoeThinkerForConditionalGeneration"

# Method of our models: (its caller in V1, its caller in V2, what of it changes)
MODEL_MOVES = {
    "load_weights": (f"{LOADER}.load_weights", f"{LOADER}.load_weights", "nothing: no part of the runner"),
    "forward": (f"{V1_RUNNER}._model_forward", f"{RUNNER}.execute_model", "nothing: buffers are filled before it"),
    "embed_input_ids": (
        f"{V1_RUNNER}._preprocess",
        f"{V2}.model_states.default:DefaultModelState.prepare_inputs_embeds",
        "nothing: models with input embeddings add them in `forward`",
    ),
    "embed_multimodal": (
        f"{V1_RUNNER}._execute_mm_encoder",
        f"{V2}.mm.encoder_runner:EncoderRunner.execute_mm_encoder",
        "nothing: audio is padded in it",
    ),
    "compute_logits": (f"{V1_RUNNER}.execute_model", f"{RUNNER}.sample", "nothing: ids are suppressed in it"),
    "get_mrope_input_positions": (
        f"{V1_RUNNER}._init_mrope_positions",
        f"{V2}.mm.rope:RopeState.init_prefill_positions",
        "positions that come with a request go to `stage_write` instead",
    ),
    "iter_mm_features": (
        f"{THINKER}.get_mrope_input_positions",
        f"{THINKER}.get_mrope_input_positions",
        "nothing: the thinker calls it itself",
    ),
}


def model_methods() -> set[str]:
    """Return the methods of our models that vLLM declares, in its interfaces or in the class that we derive from."""
    declared = {name for module in (interfaces, interfaces_base) for cls in classes_of(module) for name in vars(cls)}
    found = set()
    for reference in {model for family in families().values() for model in family.vllm_models.values()}:
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


@pytest.mark.parametrize("where", sorted({where for where, _ in MOVES.values()} | {f"{STATE}.remove_request"}))
def test_the_counterpart_exists(where):
    find(where)


def find(where: str) -> Any:
    module, _, path = where.partition(":")
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        assert hasattr(found, name), f"{where} is gone: the note has to say where its part moved"
        found = getattr(found, name)
    return found
