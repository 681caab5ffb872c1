#!/usr/bin/env bash
# Expected: `save_pretrained` writes a model's weights by the names that the releases of its kind have.
# Happens: transformers 5.19.0 writes `language_model.model.model.norm.weight` for a Qwen2-Audio that was made from a
#   configuration, where releases have `language_model.model.norm.weight`: it undoes two renamings where it did one.
#   5.23.0 writes the released names. Nothing is raised or logged, and transformers itself reads either.
# Source: `conversion_mapping.py`; the same happens to Voxtral and Granite Speech in 5.19.0 (read, not run).
# Why users care: other programs do not load such a checkpoint. vLLM 0.32 says "There is no module or parameter named
#   'model' in Qwen2Model", and the file has to be written again with other names.
# Exit code: 0 as described, 1 if the output is another one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.3.5
for release in 5.19.0 5.23.0; do
  "$folder/venv/bin/pip" install --quiet transformers==$release
  "$folder/venv/bin/python" - "$folder/model" <<'PYTHON' 2>>"$folder/errors"
import sys

import transformers
from safetensors import safe_open

sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
config = transformers.Qwen2AudioConfig(
    text_config={**sizes, "num_key_value_heads": 2, "vocab_size": 64, "model_type": "qwen2"},
    audio_config={"d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 32},
    audio_token_index=1,
)
transformers.Qwen2AudioForConditionalGeneration(config).save_pretrained(sys.argv[1])
with safe_open(f"{sys.argv[1]}/model.safetensors", "pt") as file:
    names = sorted(name for name in file.keys() if name.endswith("model.norm.weight"))
print(f"transformers {transformers.__version__}: {' '.join(names)}")
PYTHON
done | tee "$folder/seen"
diff "$folder/seen" - <<'EXPECTED' || exit 1
transformers 5.19.0: language_model.model.model.norm.weight
transformers 5.23.0: language_model.model.norm.weight
EXPECTED
