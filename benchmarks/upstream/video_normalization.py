"""vLLM normalizes videos on the device with the mean and deviation of images.

Since 0.32 Qwen3-VL gets pixels as integers, and its encoder rescales and normalizes them. It reads mean and deviation
from the image processor's configuration only, for videos too. Released checkpoints have the same in both.

    PYTHONPATH=. python benchmarks/upstream/video_normalization.py
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

from omni_cli.compat.libraries import prepare_libraries

IMAGE, VIDEO = [0.4, 0.4, 0.4], [0.5, 0.5, 0.5]


def main() -> int:
    prepare_libraries()
    import vllm
    from vllm.model_executor.layers.fusion.mm_input_norm import _load_norm_params

    def processor(mean: list[float]) -> dict[str, object]:
        return {"do_normalize": True, "do_rescale": True, "image_mean": mean, "image_std": [0.5] * 3}

    with tempfile.TemporaryDirectory() as folder:
        config = {"processor_class": "Qwen3VLProcessor", "image_processor": processor(IMAGE)}
        config["video_processor"] = processor(VIDEO)
        Path(folder, "processor_config.json").write_text(json.dumps(config))
        used = _load_norm_params(SimpleNamespace(model=folder, revision=None)).image_mean
    means = f"mean of images {IMAGE}, of videos {VIDEO}"
    sys.stdout.write(f"vLLM {vllm.__version__}: {means}; the encoder of both uses {used}\n")
    return 1 if used == IMAGE else 0


if __name__ == "__main__":
    sys.exit(main())
