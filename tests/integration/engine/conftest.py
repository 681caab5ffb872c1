"""torchvision made importable before a test file needs it."""

from omni_cli.core.compat.torchvision import ensure_torchvision_importable

ensure_torchvision_importable()
