"""Random weights that depend only on the seed and the parameter's name.

Each parameter has its own random stream, so that weights do not depend on the order in which a library creates its
modules, on threads or on the process, and a model is built without allocating or initialising it first.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import nn

_BIAS_STD = 0.05
_NORM_STD = 0.05

# Gains of a decoder's layers.
DECODER_GAINS = {
    # Sharp attention that weighs as much as the last token: answers depend on the whole prompt, and codes do not fall
    # into a short cycle at the end of the text.
    "q_proj": 2.5,
    "k_proj": 2.5,
    "o_proj": 2.0,
    # silu(gate) * up loses about half of the scale.
    "down_proj": 2.0,
}

Draw = Callable[[str, tuple[int, ...], float, float, int], torch.Tensor]
"""Draw a tensor from its name, shape, mean, standard deviation and seed."""


def normal_tensor(name: str, shape: tuple[int, ...], mean: float, std: float, seed: int) -> torch.Tensor:
    """Draw one float32 tensor from the stream `name`."""
    generator = np.random.Generator(np.random.PCG64([seed, zlib.crc32(name.encode())]))
    values = generator.standard_normal(shape, dtype=np.float32)
    values *= np.float32(std)
    values += np.float32(mean)
    return torch.from_numpy(values)


def random_state_dict(
    model: nn.Module,
    seed: int,
    *,
    prefix: str = "",
    gains: Mapping[str, float] | None = None,
    draw: Draw = normal_tensor,
) -> dict[str, torch.Tensor]:
    """Draw a state dict for `model`, which may be on the meta device; float32, or the dtype of `draw`.

    Linear and convolution weights have a standard deviation of gain / sqrt(fan-in), embeddings of gain, so that
    activations stay near unit scale at every width. Biases and norms are close to zero and one but not equal, so that a
    loader that loses one changes the output. `gains` maps a part of a parameter's name to its gain (longest match;
    default 1); `prefix` keeps the streams of several models apart. Raises `TypeError` for a parameter without a rule.
    """
    state: dict[str, torch.Tensor] = {}
    for module_name, module in model.named_modules():
        for parameter_name, parameter in module.named_parameters(recurse=False):
            name = f"{module_name}.{parameter_name}" if module_name else parameter_name
            mean, std = _moments(name, module, parameter, _gain(name, gains or {}))
            state[name] = draw(prefix + name, tuple(parameter.shape), mean, std, seed)
    state |= _codebooks(model, seed, prefix, draw)
    state |= _running_statistics(model, seed, prefix, draw)
    persistent = model.state_dict().keys() - state.keys()
    if persistent:
        raise TypeError(f"no rule for the buffers {sorted(persistent)} of {type(model).__name__}")
    return state


def _codebooks(model: nn.Module, seed: int, prefix: str, draw: Draw) -> dict[str, torch.Tensor]:
    """Draw the vectors of residual quantizers; a vector's number of occurrences, by which some divide it, is one."""
    state: dict[str, torch.Tensor] = {}
    for path, module in model.named_modules():
        if type(module).__name__.endswith("EuclideanCodebook"):
            for leaf, buffer in module.named_buffers(recurse=False):
                name, shape = f"{path}.{leaf}", tuple(buffer.shape)
                is_vectors = len(shape) == 2
                state[name] = draw(prefix + name, shape, 0.0, 1.0, seed) if is_vectors else torch.ones(shape)
    return state


def _running_statistics(model: nn.Module, seed: int, prefix: str, draw: Draw) -> dict[str, torch.Tensor]:
    """Draw the means and variances of batch normalisation, near zero and one."""
    state: dict[str, torch.Tensor] = {}
    for path, module in model.named_modules():
        if isinstance(module, nn.BatchNorm2d) and module.running_mean is not None:
            for name, mean in (("running_mean", 0.0), ("running_var", 1.0)):
                shape = tuple(module.get_buffer(name).shape)
                state[f"{path}.{name}"] = draw(f"{prefix}{path}.{name}", shape, mean, _NORM_STD, seed)
            state[f"{path}.num_batches_tracked"] = torch.zeros((), dtype=torch.long)
    return state


def shape_head(weight: torch.Tensor, *, never: list[int], end: int, end_gain: float) -> None:
    """Make the `never` rows of a head (vocab_size, hidden_size) lose every greedy choice, except `end`.

    A zero row has logit zero, far below the best of many random ones. The end row is lengthened so that it wins about
    equally often at every vocabulary size: the best of n normal variables grows like sqrt(2 ln n).
    """
    num_rivals = weight.shape[0] - len(never)
    end_row = weight[end] * (end_gain * math.sqrt(2 * math.log(num_rivals)))
    weight[never] = 0.0
    weight[end] = end_row


def _gain(name: str, gains: Mapping[str, float]) -> float:
    matches = [part for part in gains if part in name]
    return gains[max(matches, key=len)] if matches else 1.0


def _moments(name: str, module: nn.Module, parameter: nn.Parameter, gain: float) -> tuple[float, float]:
    """Return the mean and standard deviation of a parameter, by its role in its module."""
    kind = type(module).__name__
    leaf = name.rpartition(".")[2]
    if "Norm" in kind or "RMS_norm" in kind:
        return (0.0 if leaf == "bias" else 1.0), _NORM_STD
    if leaf == "bias":
        return 0.0, _BIAS_STD
    if isinstance(module, nn.Embedding) or leaf == "original1":
        return 0.0, gain
    if leaf in ("weight_g", "original0"):
        # The length of a row whose direction is in another parameter, here `original1`.
        return gain, 0.1 * gain
    if kind.endswith(("TopKRouter", "Experts")) or leaf == "scale_shift_table":
        # Rows, or one matrix per expert, that are not modules.
        return 0.0, gain / math.sqrt(parameter.shape[-1])
    if kind.endswith(("LayerScale", "ConvNeXtBlock", "ConvNext1dLayer")) or leaf.startswith("latent_"):
        # Trained from almost zero, but here each layer weighs enough for its loss to be noticed.
        return 0.5, 0.1
    if kind.endswith("CodebooksHead"):
        # One matrix (hidden_size, vocab_size) per codebook.
        return 0.0, gain / math.sqrt(parameter.shape[1])
    if isinstance(module, nn.ConvTranspose1d):
        # Each output sample sums over the input channels and only every stride-th kernel tap.
        taps = parameter.shape[0] / module.groups * parameter.shape[2] / module.stride[0]
        return 0.0, gain / math.sqrt(taps)
    if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return 0.0, gain / math.sqrt(parameter[0].numel())
    if kind.endswith(("SnakeBeta", "Snake1d")):
        return 0.0, 0.2
    if kind.endswith(("PositionalEmbedding", "FourierProjection")):
        # Random frequencies, never trained.
        return 0.0, 1.0
    raise TypeError(f"no rule for the parameter {name} of {kind}")
