"""A CPU build of torch beside CUDA builds of torchvision and torchaudio.

PyPI's x86-64 torchvision is linked against CUDA; its compiled part does not load next to a CPU build of torch, and
`import torchvision` fails with "operator torchvision::nms does not exist" while registering a meta kernel for an
operator that was never defined. pip installs this combination if PyTorch's CPU wheel index is unreachable. The models
here use torchvision's transforms only, never these two operators, so defining their schemas is enough.

PyPI's torchaudio does not load there, either. transformers' Higgs Audio v2 tokenizer imports it for one function,
`torchaudio.functional.resample`, which is done here with torch's own means.
"""

from __future__ import annotations

import importlib
import math
import sys
from contextlib import suppress
from importlib.abc import MetaPathFinder
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_SCHEMAS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}

_library = None


def ensure_torchvision_importable() -> None:
    """Define torchvision's missing operator schemas; does nothing if torchvision's own library loads."""
    global _library
    import torch

    if _library is not None or torch.version.cuda is not None or not lacks_cpu_mark("torchvision"):
        return
    _library = torch.library.Library("torchvision", "FRAGMENT")
    for name, schema in _SCHEMAS.items():
        if not hasattr(torch.ops.torchvision, name):
            _library.define(schema)


class _BeforeTorchvision(MetaPathFinder):
    """Finds nothing; the first time that torchvision is looked for, it is made importable."""

    def find_spec(self, fullname: str, _path: object = None, _target: object = None) -> None:
        if fullname == "torchvision" and self in sys.meta_path:
            sys.meta_path.remove(self)
            with suppress(ImportError):
                ensure_torchvision_importable()


def fix_imports() -> None:
    """Make a plain `import torchvision` work in this process: `make` has each process of its environment call this."""
    if not has_fixed_imports():
        sys.meta_path.insert(0, _BeforeTorchvision())


def has_fixed_imports() -> bool:
    """True after `fix_imports`."""
    return _library is not None or any(isinstance(finder, _BeforeTorchvision) for finder in sys.meta_path)


def lacks_cpu_mark(name: str) -> bool:
    """True for an installed package that its version does not mark as a CPU build."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return "+cpu" not in version(name)
    except PackageNotFoundError:
        return False


# torchaudio's defaults: zero crossings of the filter on each side, and its cutoff as a share of the lower rate.
_CROSSINGS, _ROLLOFF = 6, 0.99


def import_with_torchaudio(module: str) -> ModuleType:
    """Import a module that imports torchaudio, and let it use `resample` from here where there is none."""
    try:
        importlib.import_module("torchaudio")
    except (ImportError, OSError):
        stand_in = ModuleType("torchaudio")
        stand_in.functional = SimpleNamespace(resample=resample)  # type: ignore[attr-defined]
        sys.modules["torchaudio"] = stand_in
        try:
            return importlib.import_module(module)
        finally:
            sys.modules["torchaudio"] = None  # type: ignore[assignment]  # as `prepare_libraries` leaves it
    return importlib.import_module(module)


def resample(waveform: torch.Tensor, orig_freq: int, new_freq: int) -> torch.Tensor:
    """Return a waveform (..., num_samples) at another rate, filtered with a sinc in a Hann window."""
    import torch

    common = math.gcd(orig_freq, new_freq)
    step, phases = orig_freq // common, new_freq // common
    cutoff = _ROLLOFF * min(step, phases) / step
    reach = math.ceil(_CROSSINGS / cutoff)
    taps = torch.arange(-reach, reach + step, dtype=torch.float64)
    outputs = torch.arange(phases, dtype=torch.float64)[:, None] * step / phases
    distances = ((taps - outputs) * cutoff).clamp(-_CROSSINGS, _CROSSINGS)
    kernel = cutoff * distances.sinc() * (distances * math.pi / (2 * _CROSSINGS)).cos().square()
    windows = torch.nn.functional.pad(waveform, (reach, reach + step)).unfold(-1, len(taps), step)
    samples = (windows @ kernel.T.to(waveform)).flatten(-2)
    return samples[..., : -(-phases * waveform.shape[-1] // step)]
