"""Weights of a 7B's thinker from a file in the page cache to the device: torch's own copies, and read ahead.

    PYTHONPATH=. python benchmarks/gpu/weight_reads.py [--layers 28] [--rounds 3]

The file has 16 GiB with 28 layers; it is written first, to a temporary folder, and removed. Sides alternate. Each line
has the ways' seconds and rate: numbers of threads and of tensors ahead, and the size of the largest tensor so read.
`omni_cli/backends/vllm/weights.py` has the settings that the profiles' stages use.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from omni_cli.core.compat.libraries import prepare_libraries  # isort: skip

prepare_libraries()

from omni_cli.backends.vllm import weights

_HIDDEN, _INNER, _KEYS, _VOCABULARY = 3584, 18944, 512, 152064
_LAYER = {
    "q": (_HIDDEN, _HIDDEN), "k": (_KEYS, _HIDDEN), "v": (_KEYS, _HIDDEN), "o": (_HIDDEN, _HIDDEN),
    "gate": (_INNER, _HIDDEN), "up": (_INNER, _HIDDEN), "down": (_HIDDEN, _INNER),
}  # fmt: skip
_MIB = 1 << 20
# Threads, tensors ahead, and the largest in MiB.
_WAYS = ((2, 4, 256), (4, 8, 256), (8, 16, 256), (4, 8, 4096))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        write(path, options.layers)
        parameters = {name: torch.empty_like(tensor, device="cuda") for name, tensor in read(path)}
        for _ in range(options.rounds):
            report("torch's copies", parameters, read(path))
            for threads, ahead, largest in _WAYS:
                settings = {"_THREADS": threads, "_AHEAD": ahead, "_LARGEST_BYTES": largest * _MIB}
                with patch.multiple(weights, **settings):
                    name = f"{threads} threads, {ahead} ahead, up to {largest} MiB"
                    report(name, parameters, weights.read_ahead(read(path)))


def write(path: Path, layers: int) -> None:
    shapes = {f"{index:02}.{name}": shape for index in range(layers) for name, shape in _LAYER.items()}
    shapes |= dict.fromkeys(("embed", "head"), (_VOCABULARY, _HIDDEN))
    save_file({name: torch.full(shape, 1.0, dtype=torch.bfloat16) for name, shape in shapes.items()}, path)


def read(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - it is no dictionary
            yield name, file.get_tensor(name)


def report(name: str, parameters: dict[str, torch.Tensor], given: Iterator[tuple[str, torch.Tensor]]) -> None:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for key, tensor in given:
        parameters[key].copy_(tensor)
    torch.cuda.synchronize()
    taken_s = time.perf_counter() - begin
    rate = sum(parameter.nbytes for parameter in parameters.values()) / taken_s / 2**30
    sys.stdout.write(f"{name:42} {taken_s:6.2f} s  {rate:5.1f} GiB/s\n")


if __name__ == "__main__":
    main()
