"""Measures of outputs by models: their weights, in folders that the user names, and the process that runs them."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from omni_cli.child_python import python_command
from omni_cli.errors import ExitCode, OmniError, UsageError
from omni_cli.results import MODEL_BASED_MEASURES
from omni_cli.text import suggest, visible

ALEXNET = "alexnet-owt-7be5be79.pth"
"""torchvision's file of AlexNet, the network of LPIPS; torchmetrics has the layers on top of it."""
# `model_type` of the checkpoints that transformers loads.
_CHECKPOINTS = {"clip_score": "clip", "wer": "whisper"}
_NEEDS_TORCHMETRICS = ("lpips", "wer")


class Measurement(msgspec.Struct, frozen=True):
    """Work of the process: folders of weights by measure, and pairs of files with outputs."""

    weights: dict[str, str]
    pairs: list[tuple[str, str]]


class QualityWeightsError(OmniError):
    exit_code = ExitCode.RUN_FAILED


def parse_weights(texts: Sequence[str]) -> dict[str, Path]:
    """Parse `lpips=FOLDER` and check the folders. Raises `UsageError`."""
    folders: dict[str, Path] = {}
    for text in texts:
        name, _, folder = text.partition("=")
        if name not in MODEL_BASED_MEASURES:
            hint = suggest(name, MODEL_BASED_MEASURES) or f"there are {', '.join(MODEL_BASED_MEASURES)}"
            raise _invalid(f"no measure `{visible(name, 40)}` with weights", hint)
        folders[name] = Path(folder)
        _check_folder(name, folders[name])
    return folders


def _check_folder(measure: str, folder: Path) -> None:
    if measure in _NEEDS_TORCHMETRICS and importlib.util.find_spec("torchmetrics") is None:
        hint = "install it: `pip install 'omni-cli[quality]'`"
        raise UsageError(f"`{measure}` needs torchmetrics, which is not installed", hint=hint)
    if measure == "lpips":
        if not (folder / ALEXNET).is_file():
            raise _invalid(f"no file `{folder / ALEXNET}`", "get torchvision's weights of AlexNet, and keep their name")
        return
    kind = _CHECKPOINTS[measure]
    try:
        model_type = json.loads((folder / "config.json").read_text()).get("model_type")
    except (OSError, ValueError, AttributeError) as error:
        raise _invalid(f"no checkpoint in `{folder}`: cannot read its config.json", f"name one of {kind}") from error
    if model_type != kind:
        raise _invalid(f"`{measure}` needs a checkpoint of {kind}, and `{folder}` has one of {model_type}", None)


def _invalid(why: str, hint: str | None) -> UsageError:
    return UsageError(f"invalid value for `--quality`: {why}", hint=hint)


def measure_pairs(weights: Mapping[str, Path], pairs: Sequence[tuple[Path, Path]]) -> list[list[dict[str, float]]]:
    """Return the measures of each request of each pair of files, in a process of its own, since they need torch.

    Raises `QualityWeightsError` if the process fails.
    """
    work = Measurement(
        {name: str(folder.absolute()) for name, folder in weights.items()}, [(str(a), str(b)) for a, b in pairs]
    )
    ended = subprocess.run(
        python_command("-m", "omni_cli.bench.quality_worker"),
        input=msgspec.json.encode(work),
        capture_output=True,
    )
    if ended.returncode:
        lines = ended.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        names = ", ".join(weights)
        raise QualityWeightsError(f"cannot measure {names}: {lines[-1]}", hint="check the weights: `-v` shows more")
    return msgspec.json.decode(ended.stdout, type=list[list[dict[str, float]]])
