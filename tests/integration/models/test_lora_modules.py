"""Adapters whose modules have other names in vLLM, or that need more than two matrices per module."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.lora_adapters import PeftTokens, language_adapter, save_adapter
from support.omni_process import Ended, run_omni
from support.tiny_models import idefics3, qwen2_5_vl, qwen3, qwen3_moe
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer, LlamaForCausalLM

from omni_cli.backends.vllm import adapters as vllm_adapters
from omni_cli.checkpoints import adapters as checked
from omni_cli.checkpoints.files import read_family
from omni_cli.config.schema import ARStageConfig
from omni_cli.core.errors import CheckpointError
from omni_cli.models.reference import load_adapters
from omni_cli.models.scores import NoReferenceError

MAX_TOKENS = 12
PROMPTS = ("hello", "rain on a tin roof")


def generate(folder: Path, base: Path, adapters: Mapping[str, Path]) -> Ended:
    lines = [{"prompt": prompt, "lora": name} for prompt in PROMPTS for name in [*adapters, None]]
    (folder / "requests.jsonl").write_text("\n".join(map(json.dumps, lines)))
    options = ("--model", str(base), *(f"--lora={name}={path}" for name, path in adapters.items()))
    greedy = ("--temperature", "0", "--max-tokens", str(MAX_TOKENS), "--set", "dtype=float32")
    return run_omni(folder, "generate", *options, "--requests", str(folder / "requests.jsonl"), *greedy, "--json", "-q")


def check(folder: Path, base: Path, adapters: Mapping[str, Path], peft: PeftTokens) -> None:
    """Compare the answers with PEFT's; each adapter changes them."""
    results = iter(generate(folder, base, adapters).document["results"])
    for prompt in PROMPTS:
        answers = []
        for name in [*adapters, None]:
            answers.append(next(results)["outputs"][0]["token_ids"])
            assert answers[-1] == peft.tokens(prompt, MAX_TOKENS, name), (prompt, name)
        assert len(set(map(tuple, answers))) == len(answers)


def stage(base: Path, adapter: Path) -> Any:
    """Return a language model's stage with an adapter, its folder and its role, as the checks take them."""
    return ARStageConfig.create("model", lora={"own": str(adapter)}), base, read_family(base).role("model")


def test_patterns_with_names_of_transformers(tmp_path: Path) -> None:
    base = qwen2_5_vl(tmp_path / "model")
    layer = "model.language_model.layers.{}.self_attn.{}"
    keys: dict[str, dict[str, Any]] = {
        "full": {"alpha_pattern": {layer.format(0, "v_proj"): 64}, "rank_pattern": {layer.format(1, "q_proj"): 8}},
        "anchored": {
            "alpha_pattern": {f"^{layer.format(0, 'v_proj')}": 64, r"layers\.1.*": 2},
            "rank_pattern": {"q_proj": 2, r"^model\.language_model\..*v_proj": 8},
            "use_rslora": True,
        },
    }
    modules = r".*language_model.*(q_proj|v_proj)"
    adapters = {}
    for seed, (name, own) in enumerate(keys.items()):
        model = AutoModelForImageTextToText.from_pretrained(base, dtype=torch.float32)
        adapters[name] = save_adapter(model, tmp_path / name, seed, modules=modules, **own)
    check(tmp_path, base, adapters, PeftTokens(base, adapters, AutoModelForImageTextToText))


def test_an_adapter_of_the_language_model_beside_an_encoder_of_the_same_names(tmp_path: Path) -> None:
    base = idefics3(tmp_path / "model", hidden_size=64, intermediate_size=128)
    whole = AutoModelForImageTextToText.from_pretrained(base, dtype=torch.float32)
    text = LlamaForCausalLM(whole.config.text_config)
    weights = {name.replace("text_model.", ""): weight for name, weight in whole.state_dict().items()}
    text.load_state_dict(weights, strict=False)
    text.save_pretrained(tmp_path / "text")
    AutoTokenizer.from_pretrained(base).save_pretrained(tmp_path / "text")
    adapters = {"own": save_adapter(text, tmp_path / "own", 1, modules=("q_proj", "o_proj", "down_proj"))}
    check(tmp_path, base, adapters, PeftTokens(tmp_path / "text", adapters))
    with pytest.raises(NoReferenceError, match=r"Idefics3ForConditionalGeneration has no `model\.layers\.0"):
        load_adapters(whole, ARStageConfig.create("model", lora={"own": str(adapters["own"])}))


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return qwen3_moe(tmp_path_factory.mktemp("experts"))


def test_attention_of_a_mixture_of_experts(experts: Path, tmp_path: Path) -> None:
    adapters = {
        "attention": language_adapter(experts, tmp_path / "attention", 1, modules=("q_proj", "v_proj")),
        "router": language_adapter(experts, tmp_path / "router", 2, modules=("o_proj", "gate")),
    }
    check(tmp_path, experts, adapters, PeftTokens(experts, adapters))


def test_experts_are_for_gpus(experts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    adapter = language_adapter(experts, tmp_path / "own", 2, modules=("q_proj",), target_parameters=parameters)
    ended = generate(tmp_path, experts, {"own": adapter})
    ended.check_error(2, "vLLM has LoRA of experts (`model.layers.0.mlp.experts`) on GPUs only", "run on a GPU")
    gpu = SimpleNamespace(is_cuda=lambda: True, is_cpu=lambda: False)
    monkeypatch.setattr(vllm_adapters, "current_platform", gpu)
    assert engine_args(experts, adapter)["enable_mixed_moe_lora_format"]
    attention = language_adapter(experts, tmp_path / "attention", 1, modules=("q_proj",))
    assert not engine_args(experts, attention)["enable_mixed_moe_lora_format"]


def engine_args(base: Path, adapter: Path) -> dict[str, object]:
    config, _, _ = stage(base, adapter)
    spec: Any = SimpleNamespace(stage=config, family=read_family(base), model=str(base), dtype="bfloat16")
    return vllm_adapters.EngineAdapters(spec).engine_args()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return qwen3(tmp_path_factory.mktemp("model"))


UNSUPPORTED: dict[str, tuple[dict[str, Any], str]] = {
    "dora": ({"use_dora": True}, "`use_dora: true`"),
    "lora_bias": ({"lora_bias": True}, "`lora_bias: true`"),
    "modules_to_save": ({"modules_to_save": ["lm_head"]}, '`modules_to_save: ["lm_head"]`'),
    "tokens": ({"trainable_token_indices": [5, 6]}, "`trainable_token_indices: [5, 6]`"),
    "pissa": ({"init_lora_weights": "pissa"}, '`init_lora_weights: "pissa"`'),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_features_that_vllm_lacks_are_refused_by_name(name: str, model: Path, tmp_path: Path) -> None:
    keys, what = UNSUPPORTED[name]
    adapter = language_adapter(model, tmp_path / name, 1, **keys)
    with pytest.raises(CheckpointError, match=re.escape(f"vLLM does not support {what}")) as error:
        checked.check_adapters(*stage(model, adapter))
    assert "merge_and_unload" in (error.value.hint or "")


def test_embeddings_of_more_tokens_are_refused(model: Path, tmp_path: Path) -> None:
    """PEFT saves them beside their adapter; vLLM ignores them."""
    adapter = language_adapter(model, tmp_path / "own", 1, modules=("q_proj", "embed_tokens"))
    checked.check_adapters(*stage(model, adapter))
    file, name = adapter / "adapter_model.safetensors", "base_model.model.model.embed_tokens.base_layer.weight"
    weights = load_file(file)
    save_file({**weights, name: torch.cat((weights[name], weights[name][:2]))}, file)
    with pytest.raises(
        CheckpointError, match=r"its `model\.embed_tokens` is for a weight of 702 x 64, and the model's"
    ):
        checked.check_adapters(*stage(model, adapter))


def test_the_last_layer_of_a_model_that_shares_it_with_its_embeddings(model: Path, tmp_path: Path) -> None:
    base = AutoModelForCausalLM.from_pretrained(model, tie_word_embeddings=True)
    base.save_pretrained(tmp_path / "tied")
    adapter = language_adapter(tmp_path / "tied", tmp_path / "own", 1, modules=("q_proj", "lm_head"))
    checked.check_adapters(*stage(tmp_path / "tied", adapter))
