"""The table of pipeline classes: each checked in a process of its own, with bounds on time and memory."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from multiprocessing.context import ForkProcess
from pathlib import Path

from support.tiny_pipelines import declarations
from support.tiny_pipelines.check import check, kind_of
from support.tiny_pipelines.page import Checked

# A class takes 1 to 10 s; this is for one that hangs, beside any other load.
TIMEOUT_S = 600
MAX_BYTES = 8 * 2**30
# The kinds of classes without a tiny checkpoint, and why they have none.
_ON_ONNX = "it runs on ONNX Runtime, not on torch"
_UNCHECKED = {
    "BlipDiffusionControlNetPipeline": (
        "text to image", "`from_pretrained` cannot find its parts, which diffusers has deprecated",
    ),
    "RFD4ProteinaPipeline": ("other", "it makes molecules, from features that another package prepares"),
    "OnnxStableDiffusionPipeline": ("text to image", _ON_ONNX),
    "OnnxStableDiffusionImg2ImgPipeline": ("image to image", _ON_ONNX),
    "OnnxStableDiffusionInpaintPipeline": ("image inpainting", _ON_ONNX),
    "OnnxStableDiffusionUpscalePipeline": ("image to image", _ON_ONNX),
    "SanaWMLTX2Refiner": ("text to image", "a part of `SanaWMPipeline`, which diffusers does not export"),
}  # fmt: skip
# What is behind the error of a plain call.
_REASONS = {
    "DiffusionGemmaPipeline": "`from_pretrained` looks for a model of transformers in diffusers",
    "LLaDA2Pipeline": "`from_pretrained` cannot load the tokenizer that `save_pretrained` wrote",
}


@dataclass
class _Running:
    name: str
    process: ForkProcess
    folder: tempfile.TemporaryDirectory[str]
    started_s: float


def check_all(names: Sequence[str], jobs: int = 2) -> Iterator[Checked]:
    """Check the classes, `jobs` at a time, in the order in which they end."""
    import diffusers

    assert diffusers.AutoPipelineForText2Image  # imported before the processes are forked, with most of diffusers
    waiting = [name for name in names if name in declarations()]
    for name in names:
        if name not in declarations():
            kind, reason = _UNCHECKED[name]
            yield Checked(name, kind, "no tiny model", reason)
    running: list[_Running] = []
    while waiting or running:
        while waiting and len(running) < jobs:
            running.append(_start(waiting.pop(0)))
        time.sleep(0.05)
        for child in list(running):
            late = time.monotonic() - child.started_s > TIMEOUT_S
            if late:
                child.process.kill()
                child.process.join()
            if not child.process.is_alive():
                running.remove(child)
                row = _result(child, late)
                why = _REASONS.get(row.name) if row.verdict == "not run by diffusers" else None
                yield replace(row, reason=f"{why}: {row.reason}") if why else row


def _start(name: str) -> _Running:
    folder = tempfile.TemporaryDirectory()
    process = multiprocessing.get_context("fork").Process(target=_run, args=(name, Path(folder.name)))
    process.start()
    return _Running(name, process, folder, time.monotonic())


def _run(name: str, folder: Path) -> None:
    import torch

    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    torch.set_num_threads(1)
    log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT)
    for number in (1, 2):
        os.dup2(log, number)
    checked = check(declarations()[name], folder / "checkpoint")
    (folder / "checked.json").write_text(json.dumps(asdict(checked)))


def _result(child: _Running, late: bool) -> Checked:
    with child.folder as folder:
        answer = Path(folder) / "checked.json"
        if answer.exists():
            return Checked(**json.loads(answer.read_text()))
    why = f"it takes more than {TIMEOUT_S} s" if late else f"its process ended with {child.process.exitcode}"
    return Checked(child.name, kind_of(declarations()[child.name]), "not run by diffusers", why)
