"""LoRA adapters with random weights as PEFT saves them, and its greedy tokens with and without them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer


def save_adapter(
    model: Any,
    folder: Path,
    seed: int,
    *,
    rank: int = 4,
    modules: Sequence[str] | str = ("q_proj", "v_proj", "o_proj", "down_proj"),
    **keys: Any,
) -> Path:
    """Save an adapter of a model, whose weights depend on the seed; the model is changed. `keys` are PEFT's."""
    torch.manual_seed(seed)
    targets = modules if isinstance(modules, str) else list(modules)
    keys = {"init_lora_weights": False, **keys}
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets, **keys)
    get_peft_model(model, config).save_pretrained(str(folder))
    return folder


def language_adapter(base: Path, folder: Path, seed: int, **options: Any) -> Path:
    return save_adapter(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), folder, seed, **options)


class PeftTokens:
    """Greedy answers of a language model in float32, by an adapter's name or None."""

    def __init__(self, base: Path, adapters: Mapping[str, Path], auto: Any = AutoModelForCausalLM) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(base)
        model = auto.from_pretrained(base, dtype=torch.float32).eval()
        name, *others = adapters
        self._model = PeftModel.from_pretrained(model, adapters[name], adapter_name=name).eval()
        for other in others:
            self._model.load_adapter(adapters[other], adapter_name=other)

    def tokens(self, prompt: str, max_tokens: int, adapter: str | None) -> list[int]:
        turn = [{"role": "user", "content": prompt}]
        text = self._tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
        inputs = self._tokenizer(text, return_tensors="pt", add_special_tokens=False)
        if adapter is None:
            with self._model.disable_adapter():
                return self._greedy(inputs, max_tokens)
        self._model.set_adapter(adapter)
        return self._greedy(inputs, max_tokens)

    def _greedy(self, inputs: Any, max_tokens: int) -> list[int]:
        output = self._model.generate(**inputs, do_sample=False, max_new_tokens=max_tokens)
        return output[0, inputs["input_ids"].shape[1] :].tolist()
