"""Measure how far bfloat16 differs from float32 in ways that are right, to calibrate `omni verify` on a GPU.

    python verify_noise.py OUT.json

Random weights of Qwen2.5's sizes (0.5B, 1.5B). Each way follows the same 48 greedy tokens of 4 prompts. `reference`
are the two ways that `omni verify` measures its noise by; `engines` are further ways to compute the same, which must
not be called different: a batch with padding, and a static cache. `faults` are one weight times 1.01, and a rotary base
that is wrong by 30 %. For each, the ratios to the reference's own largest and mean difference.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen2Config, StaticCache

SIZES = {
    "0.5B": {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14},
    "1.5B": {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12},
}
NUM_PROMPTS, NUM_TOKENS, TOP = 4, 48, 8


def build(name: str, dtype: torch.dtype, attention: str) -> Any:
    config = Qwen2Config(
        **SIZES[name], num_key_value_heads=2, vocab_size=151_936, max_position_embeddings=4096, rope_theta=1e6,
        tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=attention)
    with torch.no_grad():
        # Logits as peaked as a trained model's.
        model.get_input_embeddings().weight.mul_(6.0)
    return model.to(torch.bfloat16).to(dtype).eval().cuda()


@torch.no_grad()
def follow(model: Any, sequences: list[torch.Tensor], candidates: list[torch.Tensor], **options: Any) -> list[Any]:
    """Log-probabilities of the candidates after each token, one sequence after another, token by token."""
    found = []
    for sequence, wanted in zip(sequences, candidates, strict=True):
        start = len(sequence) - NUM_TOKENS
        cache = options["cache"](model) if "cache" in options else None
        output = model(sequence[None, :start].cuda(), past_key_values=cache, use_cache=True)
        rows = [output.logits[0, -1]]
        for position in range(start, len(sequence) - 1):
            step = options.get("step", model)
            output = step(
                sequence[None, position : position + 1].cuda(), past_key_values=output.past_key_values, use_cache=True
            )
            rows.append(output.logits[0, -1])
        logprobs = torch.stack(rows).double().log_softmax(-1).cpu()
        found.append(logprobs.gather(1, wanted))
    return found


@torch.no_grad()
def in_a_batch(model: Any, sequences: list[torch.Tensor], candidates: list[torch.Tensor]) -> list[Any]:
    """The same in one padded forward pass."""
    longest = max(map(len, sequences))
    ids = torch.stack([torch.nn.functional.pad(each, (longest - len(each), 0)) for each in sequences]).cuda()
    mask = torch.stack([torch.arange(longest) >= longest - len(each) for each in sequences]).cuda()
    positions = (mask.long().cumsum(-1) - 1).clamp(min=0)
    logits = model(ids, attention_mask=mask, position_ids=positions).logits[:, -NUM_TOKENS - 1 : -1]
    logprobs = logits.double().log_softmax(-1).cpu()
    return [rows.gather(1, wanted) for rows, wanted in zip(logprobs, candidates, strict=True)]


def difference(a: list[Any], b: list[Any]) -> dict[str, float]:
    gaps = torch.cat([(x - y).abs().ravel() for x, y in zip(a, b, strict=True)])
    return {"mean": float(gaps.mean()), "max": float(gaps.max())}


@torch.no_grad()
def measure(name: str) -> dict[str, Any]:
    wide, own, eager = (
        build(name, torch.float32, "sdpa"), build(name, torch.bfloat16, "sdpa"), build(name, torch.bfloat16, "eager"),
    )  # fmt: skip
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(0, 150_000, (40 + 25 * number,), generator=generator) for number in range(NUM_PROMPTS)]
    sequences = [
        own.generate(prompt[None].cuda(), max_new_tokens=NUM_TOKENS, min_new_tokens=NUM_TOKENS, do_sample=False)[
            0
        ].cpu()
        for prompt in prompts
    ]
    logits = [own(each[None].cuda()).logits[0, -NUM_TOKENS - 1 : -1].cpu() for each in sequences]
    candidates = [each.topk(TOP).indices for each in logits]
    truth = follow(wide, sequences, candidates)
    reference = [difference(follow(model, sequences, candidates), truth) for model in (own, eager)]
    largest = {key: max(each[key] for each in reference) for key in ("mean", "max")}

    def static(model: Any) -> Any:
        return StaticCache(config=model.config, max_cache_len=512)

    engines = {
        "padded batch": in_a_batch(own, sequences, candidates),
        "static cache": follow(own, sequences, candidates, cache=static),
    }
    faults = {}
    weight = own.model.layers[0].mlp.down_proj.weight
    weight.mul_(1.01)
    faults["one weight x 1.01"] = follow(own, sequences, candidates)
    weight.div_(1.01)
    own.model.rotary_emb.inv_freq.copy_(
        1 / (1.3e6 ** (torch.arange(0, 128 if name != "0.5B" else 64, 2) / (128 if name != "0.5B" else 64)))
    )
    faults["rotary base x 1.3"] = follow(own, sequences, candidates)

    def ratios(found: dict[str, list[Any]]) -> dict[str, Any]:
        result = {}
        for key, values in found.items():
            gap = difference(values, truth)
            result[key] = {**gap, "of_max": gap["max"] / largest["max"], "of_mean": gap["mean"] / largest["mean"]}
        return result

    return {"reference": reference, "engines": ratios(engines), "faults": ratios(faults)}


def main() -> None:
    about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    results = {}
    for name in SIZES:
        results[name] = measure(name)
        torch.cuda.empty_cache()
        sys.stdout.write(f"{name} {json.dumps(results[name], indent=1)}\n")
        with open(sys.argv[1], "w") as file:  # noqa: PTH123
            json.dump({**about, "results": results}, file, indent=1)


if __name__ == "__main__":
    main()
