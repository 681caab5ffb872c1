#!/usr/bin/env bash
# Expected: a CSM that is saved and loaded has the weights of before. Its configuration says by
#   `tie_codebooks_embeddings: true`, the default, that backbone and depth decoder share their table of codes.
# Happens: transformers 5.19.0 saves one of the two tables, and ties none on loading: `CsmConfig` sets
#   `tie_word_embeddings` to false, which switches off both. The backbone's table is random, and listed as missing.
#   5.23.0 ties them.
# Source: `CsmForConditionalGeneration.from_pretrained` of a model whose tables were the same tensor when it was saved.
# Why users care: whoever fine-tunes CSM and saves it, or loads a checkpoint with one table, hears noise in place of
#   speech, behind one warning about newly initialized weights.
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

sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
codec = {"model_type": "mimi", "hidden_size": 32, "num_filters": 4, "num_hidden_layers": 1, "upsample_groups": 32}
config = transformers.CsmConfig(
    **sizes, vocab_size=64, text_vocab_size=64, depth_decoder_config={**sizes, "vocab_size": 64}, codec_config=codec
)
model = transformers.CsmForConditionalGeneration(config)
model.backbone_model.embed_tokens.embed_audio_tokens.weight = model.depth_decoder.model.embed_tokens.weight
model.save_pretrained(sys.argv[1])
loaded, info = transformers.CsmForConditionalGeneration.from_pretrained(sys.argv[1], output_loading_info=True)
tables = (loaded.backbone_model.embed_tokens.embed_audio_tokens, loaded.depth_decoder.model.embed_tokens)
equal = "equal" if tables[0].weight.equal(tables[1].weight) else "not equal"
print(f"transformers {transformers.__version__}: the tables are {equal}; missing: {sorted(info['missing_keys'])}")
PYTHON
done | tee "$folder/seen"
diff "$folder/seen" - <<'EXPECTED' || exit 1
transformers 5.19.0: the tables are not equal; missing: ['backbone_model.embed_tokens.embed_audio_tokens.weight']
transformers 5.23.0: the tables are equal; missing: []
EXPECTED
