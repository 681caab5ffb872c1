#!/usr/bin/env bash
# Expected: Mimi's encoder gives a recording the same codes in every release of transformers. Its `sliding_window` of
#   250 positions, 10 seconds, bounds what a position sees.
# Happens: transformers 4.57.3 masks no more than what comes later, so that with SDPA, the default, each position sees all
#   before it. 5.19.0 masks what is before the window. Codes of recordings of more than 10 seconds differ.
# Source: `MimiTransformerModel.forward`: `create_causal_mask` became `create_sliding_window_causal_mask`.
# Why users care: Qwen3-TTS's package, and whoever made codes for training or for prompts, is on one side of the
#   change: the same recording, encoded with the other release, is another prompt.
# Exit code: 0 as described, 1 if the output is another one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.3.5
for release in 4.57.3 5.19.0; do
  "$folder/venv/bin/pip" install --quiet transformers==$release
  "$folder/venv/bin/python" - <<'PYTHON' 2>>"$folder/errors"
import torch
import transformers

sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16}
torch.manual_seed(0)
config = transformers.MimiConfig(**sizes, initializer_range=0.1, layer_scale_initial_scale=1.0, num_filters=4, codebook_dim=16, upsample_groups=32, sliding_window=250)
config.vector_quantization_hidden_dimension = 16
model = transformers.MimiModel(config).eval()
layer = model.encoder_transformer
frames = torch.randn(1, 400, 32)
changed = frames.clone()
changed[:, 0] = torch.randn(32)  # 399 positions before the last one; the window is 250
with torch.no_grad():
    last = [layer(rows)[0][0, -1] for rows in (frames, changed)]
seen = "not " * last[0].equal(last[1])
print(f"transformers {transformers.__version__}: the last of 400 positions is {seen}influenced by the first")
PYTHON
done | tee "$folder/seen"
diff "$folder/seen" - <<'EXPECTED' || exit 1
transformers 4.57.3: the last of 400 positions is influenced by the first
transformers 5.19.0: the last of 400 positions is not influenced by the first
EXPECTED
