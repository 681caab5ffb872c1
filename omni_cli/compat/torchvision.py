"""A CPU build of torch beside a CUDA build of torchvision.

PyPI's x86-64 torchvision is linked against CUDA; its compiled part does not load next to a CPU build of torch, and
`import torchvision` fails with "operator torchvision::nms does not exist" while registering a meta kernel for an
operator that was never defined. pip installs this combination if PyTorch's CPU wheel index is unreachable. The models
here use torchvision's transforms only, never these two operators, so defining their schemas is enough.
"""

from __future__ import annotations

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


def lacks_cpu_mark(name: str) -> bool:
    """True for an installed package that its version does not mark as a CPU build."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return "+cpu" not in version(name)
    except PackageNotFoundError:
        return False
