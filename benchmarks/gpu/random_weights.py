"""A vLLM plugin: random weights, drawn on the device where vLLM would read a checkpoint's.

60 GB need not be written, read or kept in memory. A value depends on its parameter's name, its place and the device
alone, so that every engine of the same model class has the same weights. `install` makes all processes that are started
later load it.
"""

from __future__ import annotations

import math
import os
import sys
import zlib
from pathlib import Path

# Key of a config.json: larger token ids never win a greedy choice.
NUM_READABLE_IDS = "num_readable_ids"
_NAME = "omni_random_weights"


def install(folder: Path) -> None:
    """Write the plugin's entry point into `folder`, and put that on the path of processes that start later."""
    here = Path(__file__).resolve()
    distribution = folder / f"{_NAME}-0.dist-info"
    distribution.mkdir(parents=True)
    (distribution / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {_NAME}\nVersion: 0\n")
    point = f"[vllm.general_plugins]\n{_NAME} = {here.stem}:register\n"
    (distribution / "entry_points.txt").write_text(point)
    places = [str(folder), str(here.parent), str(here.parents[2])]
    sys.path[:0] = places
    os.environ["PYTHONPATH"] = os.pathsep.join([*places, *filter(None, [os.environ.get("PYTHONPATH")])])


def register() -> None:
    """Replace vLLM's loading of a folder, and leave out the warm-up of kernels that a model may not use."""
    import torch
    from vllm.model_executor import model_loader
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader
    from vllm.v1.worker import gpu_worker

    from omni_cli.backends.vllm.weights import WHOLE_STAGE

    class RandomWeights(BaseModelLoader):
        def download_model(self, model_config: object) -> None:
            """Do nothing: there is nothing to download."""

        def load_weights(self, model: torch.nn.Module, model_config: object) -> None:
            for name, parameter in model.named_parameters():
                fill(name, parameter.data)
            num_ids = getattr(model_config.hf_config, NUM_READABLE_IDS, None)
            heads = [each for name, each in model.named_parameters() if name.endswith("language_model.lm_head.weight")]
            for head in heads if num_ids is not None else ():
                head.data[num_ids:] = 0.0
            if hasattr(model, "code_network"):
                model.load_weights(())  # what it prepares once its weights are there

    for load_format in ("auto", WHOLE_STAGE):
        model_loader._LOAD_FORMAT_TO_MODEL_LOADER[load_format] = RandomWeights
    gpu_worker.kernel_warmup = lambda worker: None


def fill(name: str, values: object, gain: float = 1.0) -> None:
    """Fill a parameter so that activations stay near unit scale: norms near 1, biases near 0, the rest by fan-in.

    `gain` is that of the rest.
    """
    import torch

    assert isinstance(values, torch.Tensor)
    if not values.is_floating_point():
        return
    generator = torch.Generator(values.device).manual_seed(zlib.crc32(name.encode()))
    if values.ndim < 2:
        mean = 1.0 if name.endswith("weight") else 0.0
        values.normal_(mean, 0.05, generator=generator)
        return
    fan_in = math.prod(values.shape[1:]) if values.ndim != 3 or "expert" not in name else values.shape[-1]
    values.normal_(0.0, gain if "embed" in name else gain / math.sqrt(fan_in), generator=generator)
