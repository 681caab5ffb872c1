#!/usr/bin/env bash
# Expected: Qwen2.5-VL's text behind a video begins at the position after the last of the video's, in every release.
# Happens: transformers 5.19.0 goes on after the larger of its height and width, and forgets its length: behind a video
#   that lasts longer than it is wide, text has positions of the video's own frames. 4.57.3 goes on behind all of it, as
#   do vLLM 0.32 and, in 5.19.0 itself, Qwen2.5-Omni. Nothing is raised or logged.
# Source: `Qwen2_5_VLModel.get_rope_index`; the same is in Qwen2-VL, Qwen3-VL and GLM-4V of 5.19.0 (read, not run).
# Why users care: the next token differs (on a random tiny model, log-probabilities by 0.5 in the mean), so that answers
#   about clips of ten seconds are other ones than those of the release that the model was trained with, and a comparison
#   of vLLM with transformers reports a fault of the wrong side.
# Exit code: 0 as described, 1 if the output is another one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.3.5
for release in 4.57.3 5.19.0; do
  "$folder/venv/bin/pip" install --quiet transformers==$release
  "$folder/venv/bin/python" - <<'PYTHON' 2>>"$folder/errors"
import inspect

import torch
import transformers
from transformers import Qwen2_5_VLConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel

VIDEO, START, END = 7, 8, 9
text = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "vocab_size": 16, "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
}
vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 32}
config = Qwen2_5_VLConfig(
    text_config=text, vision_config=vision, video_token_id=VIDEO, image_token_id=6, vision_start_token_id=START,
    vision_end_token_id=END,
)
model = Qwen2_5_VLModel(config)
# Ten steps in time of 4 x 4 patches, of which the model makes 2 x 2 tokens: 40 tokens between three of text each.
ids = torch.tensor([[1, 2, START, *[VIDEO] * 40, END, 3, 4]])
keys = {"video_grid_thw": torch.tensor([[10, 4, 4]]), "second_per_grid_ts": torch.tensor([1.0])}
if "mm_token_type_ids" in inspect.signature(model.get_rope_index).parameters:
    keys["mm_token_type_ids"] = (ids == VIDEO).int() * 2
positions, _ = model.get_rope_index(input_ids=ids, **keys)
last, first = positions[:, 0, :43].max().item(), positions[:, 0, 43].max().item()
print(f"transformers {transformers.__version__}: the video's last position is {last}, the text behind it begins at {first}")
PYTHON
done | tee "$folder/seen"
diff "$folder/seen" - <<'EXPECTED' || exit 1
transformers 4.57.3: the video's last position is 39, the text behind it begins at 40
transformers 5.19.0: the video's last position is 39, the text behind it begins at 5
EXPECTED
