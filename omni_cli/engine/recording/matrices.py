"""The matrices of an AR model on vLLM, for the lower bound on the time of its steps."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

from omni_cli.models.codec.frame_model import FrameModel
from omni_cli.stage.recording import Linear, module_kind


def get_linears(root: str, model: nn.Module, dtype: torch.dtype) -> Iterator[Linear]:
    """Return the matrices of `model`, whose modules are called `root`.PATH; vLLM may have packed their weights."""
    for path, module in _language_modules(root, model):
        match module:
            case LinearBase():
                weights = module.input_size * module.output_size
                yield Linear(module_kind(path), weights, weights * dtype.itemsize, "token")
            case ParallelLMHead():
                weights = module.embedding_dim * module.num_embeddings
                yield Linear(module_kind(path), weights, weights * dtype.itemsize, "sample")
            case RoutedExperts():
                yield _experts(path, module, dtype)
    if isinstance(model, FrameModel):
        yield from _predictor_linears(root, model)


def get_uncounted(root: str, model: nn.Module) -> Iterator[str]:
    """Return the parts whose number of rows does not follow from token counts."""
    kinds = {module_kind(path) for path, module in _language_modules(root, model) if type(module) is nn.Linear}
    yield from (f"module {kind}: its number of rows is unknown" for kind in sorted(kinds))
    if hasattr(model, "get_language_model"):
        yield "encoders of images, audio and video"
    if isinstance(model, FrameModel):
        yield f"attention among the codes of a frame in {root}.{model.predictor_name}"


def _experts(path: str, module: RoutedExperts, dtype: torch.dtype) -> Linear:
    config = module.moe_config
    # Up and down, and for most activations a gate.
    weights = (config.w13_num_shards + 1) * config.hidden_dim * config.intermediate_size
    return Linear(
        module_kind(path),
        weights,
        weights * dtype.itemsize,
        "token",
        num_experts=config.num_experts,
        num_active=config.experts_per_token,
    )


def _predictor_linears(root: str, model: FrameModel) -> Iterator[Linear]:
    """Layers see a row per codebook, in one pass less; each head sees one."""
    network, num_codes = model.code_network(), model.num_codebooks
    repeated = set(network.layers.modules())
    if isinstance(network.project, nn.Module):
        repeated |= set(network.project.modules())
    for path, module in getattr(model, model.predictor_name).named_modules():
        weight = getattr(module, "weight", None)
        if isinstance(module, nn.Embedding) or weight is None or weight.ndim < 2:
            continue
        passes = {"num_rows": num_codes, "num_reads": num_codes - 1} if module in repeated else {}
        yield Linear(
            module_kind(f"{root}.{model.predictor_name}.{path}"), weight.numel(), weight.nbytes, "sample", **passes
        )


def _language_modules(root: str, model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules that text passes through, without the encoders of other media."""
    language = model.get_language_model() if hasattr(model, "get_language_model") else model
    inside = {id(module) for module in language.modules()}
    if isinstance(model, FrameModel):
        inside -= {id(module) for module in getattr(model, model.predictor_name).modules()}
    for path, module in model.named_modules():
        if id(module) in inside:
            yield f"{root}.{path}", module
