"""transformers saves weights of Qwen2-Audio and others by names that no release has.

In 5.19.0 `language_model.model.norm.weight` of a model made from a configuration becomes
`language_model.model.model.norm.weight`: two entries of `conversion_mapping.py` are undone, where one was done.
transformers reads it, but vLLM 0.32 does not ("There is no module or parameter named 'model' in Qwen2Model").
5.23.0 saves the name in the releases.

    PYTHONPATH=. python benchmarks/upstream/doubled_names.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from omni_cli.compat.torchvision import ensure_torchvision_importable

SIZES = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


def main() -> int:
    ensure_torchvision_importable()
    import transformers
    from safetensors import safe_open

    text = {**SIZES, "num_key_value_heads": 2, "vocab_size": 64, "model_type": "qwen2"}
    audio = {"d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 32}
    config = transformers.Qwen2AudioConfig(text_config=text, audio_config=audio, audio_token_index=1)
    with tempfile.TemporaryDirectory() as folder:
        transformers.Qwen2AudioForConditionalGeneration(config).save_pretrained(folder)
        with safe_open(Path(folder) / "model.safetensors", "pt") as file:
            names = list(file.keys())
    doubled = [name for name in names if ".model.model." in name]
    counts = f"{len(doubled)} of {len(names)} names are doubled"
    sys.stdout.write(f"transformers {transformers.__version__}: {counts} {' '.join(doubled[:2])}\n")
    return 1 if doubled else 0


if __name__ == "__main__":
    sys.exit(main())
