"""Check that LoRA adapters fit a checkpoint, reading only headers and small files; rename their weights as its are."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from omni_cli.checkpoints.files import read_header, read_object, weight_shapes
from omni_cli.config.families import StageRole
from omni_cli.config.schema import ARStageConfig, StageConfig
from omni_cli.config.stage_keys import Adapter
from omni_cli.core.errors import CheckpointError

# vLLM's default of `max_lora_rank`, and the values that it can have.
DEFAULT_RANK, _RANKS = 16, (8, 16, 32, 64, 128, 256, 320, 512)
_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX, _BASE = "base_model.model.", ".base_layer.weight"
_SUFFIXES = (".weight", ".qweight", ".weight_packed")
_WRONG_MODEL = "use an adapter of this model"
_MERGE = "merge it into its base with PEFT's `merge_and_unload`, and name the merged folder with `--model`"
# Keys of adapter_config.json that vLLM does not follow, and their values without effect.
_FEATURES: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(("modules_to_save", "trainable_token_indices", "use_dora", "lora_bias", "use_qalora"), (False, [])),
    **dict.fromkeys(("use_bdlora", "alora_invocation_tokens", "layer_replication"), (False, [])),
    **dict.fromkeys(("arrow_config", "kasa_config", "monteclora_config"), ()),
    "peft_type": ("lora",),
    "bias": ("none",),
    # Others change the weights of the base model when PEFT loads the adapter.
    "init_lora_weights": (True, False, "gaussian", "eva", "orthogonal", "mica", "lora_ga"),
}
# Experts that a router chooses among, one by one or as one tensor; not shared experts, which every token passes.
EXPERTS = re.compile(r"\.experts(\.|$)")


def check_adapters(stage: StageConfig, folder: Path, role: StageRole) -> None:
    """Raise `CheckpointError` for an adapter of a stage that is missing, or that the checkpoint cannot take.

    A pipeline of diffusers checks ranks and modules itself.
    """
    for adapter in stage.adapters:
        if not adapter.path.exists():
            raise unusable(adapter, f"there is no folder `{adapter.path}`", "write `--lora NAME=DIR`")
        if isinstance(stage, ARStageConfig):
            _check_config(adapter, stage)
            _find_modules(adapter, folder, role)


def adapted_modules(adapter: Adapter) -> set[str]:
    """Return the names of the modules that an adapter has weights for, as PEFT has them."""
    return {name.rpartition(".lora_")[0].removeprefix(_PREFIX) for name in read_header(adapter.path / ADAPTER_WEIGHTS)}


def has_experts(folder: Path, role: StageRole) -> bool:
    """True if the language model of a stage is a mixture of experts."""
    return any(EXPERTS.search(name) for name in _weights(folder, role))


def rename_modules(adapter: Adapter, folder: Path, role: StageRole) -> Path:
    """Return the adapter's folder, or that of a copy whose modules have the names of the checkpoint's weights.

    vLLM knows those, and ignores modules that a class of transformers names otherwise. Patterns of ranks and alphas
    are for PEFT's names: the copy has each module's own.
    """
    names = _find_modules(adapter, folder, role)
    if all(before == after for before, after in names.items()):
        return adapter.path
    from safetensors.torch import load_file, save_file

    copy = Path(tempfile.mkdtemp(prefix="adapter-"))
    config = read_object(adapter.path / _CONFIG)
    for patterns, default in (("rank_pattern", "r"), ("alpha_pattern", "lora_alpha")):
        own = config.get(patterns) or {}
        # The first that fits counts; experts, which are not in `names`, keep theirs.
        exact = {
            f"^{re.escape(name.removeprefix(_PREFIX))}": next(
                (value for key, value in own.items() if re.match(rf"(.*\.)?({key})$", module.removeprefix(_PREFIX))),
                config[default],
            )
            for module, name in names.items()
        }
        config[patterns] = exact | own
    (copy / _CONFIG).write_text(json.dumps(config))
    weights = {}
    for name, weight in load_file(adapter.path / ADAPTER_WEIGHTS).items():
        module, dot, part = name.rpartition(".lora_")
        weights[names.get(module, module) + dot + part] = weight
    save_file(weights, copy / ADAPTER_WEIGHTS)
    return copy


def unusable(adapter: Adapter, why: str, hint: str = _WRONG_MODEL) -> CheckpointError:
    return CheckpointError(f"the LoRA adapter `{adapter.name}` cannot be used: {why}", hint=hint)


def _check_config(adapter: Adapter, stage: ARStageConfig) -> None:
    """Raise `CheckpointError` for an adapter that is not one of PEFT, or that vLLM has no support for."""
    for name in (_CONFIG, ADAPTER_WEIGHTS):
        if not (adapter.path / name).is_file():
            raise unusable(
                adapter, f"`{adapter.path}` has no {name}", "name the folder that PEFT's `save_pretrained` wrote"
            )
    config = read_object(adapter.path / _CONFIG)
    for key, harmless in _FEATURES.items():
        value = config.get(key)
        if value is not None and (value.lower() if isinstance(value, str) else value) not in harmless:
            raise unusable(adapter, f"vLLM does not support `{key}: {json.dumps(value)}`", _MERGE)
    patterns = config.get("rank_pattern")
    ranks = [config.get("r"), *(patterns.values() if isinstance(patterns, dict) else ())]
    rank = max((rank for rank in ranks if isinstance(rank, int)), default=0)
    limit = stage.max_lora_rank or DEFAULT_RANK
    if rank > limit:
        enough = next((each for each in _RANKS if each >= rank), None)
        hint = f"--set {stage.name}.max_lora_rank={enough}" if enough else f"vLLM takes ranks up to {_RANKS[-1]}"
        raise unusable(adapter, f"its rank is {rank}, above `max_lora_rank` {limit}", hint)


def _weights(folder: Path, role: StageRole) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a stage's matrices by name."""
    component, _, _ = "".join(role.needed_weights[:1]).rpartition("/")
    prefixes = tuple(part.rpartition("/")[2] for part in role.needed_weights) or ("",)
    shapes = weight_shapes(folder / component)
    return {name: shape for name, shape in shapes.items() if name.startswith(prefixes) and name.endswith(_SUFFIXES)}


def _find_modules(adapter: Adapter, folder: Path, role: StageRole) -> dict[str, str]:
    """Map an adapter's names of modules to the checkpoint's, whose shapes must be those of the adapter's base.

    vLLM compares neither. Left out are experts, which adapters or checkpoints fuse, convolutions, and other formats.
    """
    weights = _weights(folder, role)
    parts = {name: entry["shape"] for name, entry in read_header(adapter.path / ADAPTER_WEIGHTS).items()}
    names = {}
    for name, down in parts.items():
        module, end, _ = name.partition(".lora_A.weight")
        up = parts.get(f"{module}.lora_B.weight", [])
        if end and weights and not EXPERTS.search(module) and len(down) == len(up) == 2:
            names[module] = _PREFIX + _find(adapter, module.removeprefix(_PREFIX), (up[0], down[1]), weights)
        elif weights and name.endswith(_BASE):  # embeddings, which PEFT saves beside their adapter, and vLLM ignores
            _find(adapter, name.removeprefix(_PREFIX).removesuffix(_BASE), down, weights)
    return names


def _find(adapter: Adapter, module: str, shape: Sequence[int], weights: Mapping[str, tuple[int, ...]]) -> str:
    """Return the name of a module's weight, whatever precedes the number of its layer. Raises `CheckpointError`."""
    words = module.split(".")
    number = next((index for index, word in enumerate(words) if word.isdigit()), len(words))
    found: list[str] = []
    for end in (".".join(words[start:]) for start in range(number)):
        found = found or [name for name in weights if f".{name.rpartition('.')[0]}".endswith(f".{end}")]
    if not found and words == ["lm_head"]:
        return module  # the last layer is that of the embeddings
    if not found:
        raise unusable(adapter, f"the model has no module `{module}`")
    # An encoder may have modules of the same names and sizes; it is the language model that has embeddings of tokens.
    home = tuple(name.rpartition("embed_tokens.")[0] for name in weights if "embed_tokens." in name)
    found = [name for name in found if name.startswith(home)] or found
    # Those of a quantized model are packed, and those of GPT-2 transposed.
    fitting = [name for name in found if not name.endswith(".weight") or sorted(weights[name]) == sorted(shape)]
    if not fitting:
        sizes = [" x ".join(map(str, each)) for each in (shape, weights[found[0]])]
        raise unusable(adapter, f"its `{module}` is for a weight of {sizes[0]}, and the model's has {sizes[1]}")
    return fitting[0].rpartition(".")[0] if len(fitting) == 1 else module
