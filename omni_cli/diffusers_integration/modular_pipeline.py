"""A modular pipeline of diffusers behind the interface of its other pipelines. Imports diffusers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import torch
from diffusers import DiffusionPipeline
from diffusers.modular_pipelines import ModularPipeline
from PIL import Image

from omni_cli.contents import CallFile
from omni_cli.diffusers_integration.description import described_modular
from omni_cli.diffusers_integration.pipeline_run import scheduler_steps
from omni_cli.inputs.pipeline_call import Argument
from omni_cli.inputs.value_types import ValueType

OnStepEnd = Callable[[object, int, object, dict[str, object]], object]
_CALLBACK = (ValueType("Callable"),)


class ModularAdapter(DiffusionPipeline):
    """The pipeline's components, placed and offloaded as those of any pipeline, and its blocks as one call.

    The call takes the blocks' inputs, `guidance_scale` for their guiders and `callback_on_step_end`, and returns what
    the blocks make. `num_timesteps` is the number of steps of the running loop, None between calls and for loops
    without the blocks' own progress bar, whose steps are those of the scheduler.
    """

    def __init__(self, modular: ModularPipeline) -> None:
        self.modular = modular
        self.num_timesteps: int | None = None
        self._on_step: OnStepEnd | None = None
        # Pipelines of one class share some of their blocks.
        blocks = modular._blocks = modular.blocks
        self._defaults = {name: value for name, value in modular.default_call_parameters.items() if name is not None}
        self._guiders = [] if "guidance_scale" in self._defaults else _guiders(modular)
        if self._guiders:
            self._defaults["guidance_scale"] = self._guiders[0].guidance_scale
        call = described_modular(modular)
        taken = {name: argument for name, argument in call.arguments.items() if name in self._defaults}
        self.described_call = replace(call, arguments={**taken, "callback_on_step_end": Argument(_CALLBACK)})
        for block in _blocks(blocks):
            if hasattr(block, "progress_bar"):
                # No bound method: a copy of the blocks would copy it with the weights.
                block.progress_bar = lambda total: self._progress_bar(total)

    def __getattr__(self, name: str) -> Any:
        if name == "modular":
            raise AttributeError(name)
        return getattr(self.modular, name)

    @staticmethod
    def _get_signature_keys(adapter: ModularAdapter) -> tuple[list[str], list[str]]:
        return list(adapter.components), []

    @property
    def components(self) -> dict[str, Any]:
        components: dict[str, Any] = self.modular.components
        return components

    @property
    def model_cpu_offload_seq(self) -> str:
        """Every model in the order in which the blocks name them, which is that of their use."""
        return "->".join(self.components)

    def __call__(self, callback_on_step_end: OnStepEnd | None = None, **inputs: Any) -> SimpleNamespace:
        self._on_step = callback_on_step_end
        own = [guider.guidance_scale for guider in self._guiders]
        if self._guiders:
            self._guide([inputs.pop("guidance_scale", None)] * len(own))
        try:
            with scheduler_steps(self.modular, self._note_scheduler):
                outputs = self.modular(**inputs, output=list(self.described_call.outputs))
        finally:
            self.num_timesteps = self._on_step = None
            self._guide(own)
        self.maybe_free_model_hooks()
        return SimpleNamespace(**outputs)

    def _guide(self, scales: list[float | None]) -> None:
        """Set the guidance of all guiders, as other pipelines do that have several; None leaves one as it is."""
        for guider, scale in zip(self._guiders, scales, strict=True):
            if scale is not None:
                guider.guidance_scale = scale

    def notes_on(self, arguments: Mapping[str, object]) -> list[str]:
        """Return a sentence for each input that the blocks which these inputs select ignore."""
        plain = (bool, int, float, str, list, tuple)
        is_default = {
            name: isinstance(value, plain) and value == self._defaults.get(name) for name, value in arguments.items()
        }
        chosen = {name: value for name, value in arguments.items() if value is not None and not is_default[name]}
        known = {entry.name for entry in self.modular._blocks.get_execution_blocks(**chosen).inputs}
        ignored = sorted(chosen.keys() - known - ({"guidance_scale"} if self._guiders else set()))
        return [f"`{name}` has no effect beside {_listed(chosen, name)}" for name in ignored]

    def reference(self, name: str, file: CallFile) -> object:
        """Return a file as the class that its kind has among the values of an input."""
        declared = next(entry.type_hint for entry in self.modular.blocks.inputs if entry.name == name)
        kinds = {kind_class.kind: kind_class for kind_class in get_args(declared)[0].__subclasses__()}
        array, sound = file.array, file if file.kind == "audio" else file.sound
        if file.kind == "image":
            return kinds["image"](Image.fromarray(array))
        content: dict[str, object] = {} if file.kind == "audio" else {"frames": array, "fps": file.rate}
        if sound is not None:
            samples = np.atleast_2d(sound.array.T)
            content |= {"audio": torch.from_numpy(samples.copy()), "sample_rate": sound.rate}
        return kinds[file.kind](**content)

    def _note_scheduler(self) -> None:
        """Report a step of a loop without a progress bar."""
        if self.num_timesteps is None and self._on_step is not None:
            self._on_step(self, 0, None, {})

    @contextmanager
    def _progress_bar(self, total: int) -> Iterator[SimpleNamespace]:
        """Count the steps of a loop, in place of diffusers' progress bar."""
        self.num_timesteps, done = total, 0

        def update(steps: int = 1) -> None:
            nonlocal done
            for _ in range(int(steps)):
                done += 1
                if self._on_step is not None:
                    self._on_step(self, done - 1, None, {})

        yield SimpleNamespace(update=update)


def _blocks(block: Any) -> Iterator[Any]:
    yield block
    for inner in block.sub_blocks.values():
        yield from _blocks(inner)


def _guiders(modular: ModularPipeline) -> list[Any]:
    """Return the components that guide a step, which have the scale that is an argument of other pipelines.

    Some models are distilled, and theirs are off.
    """
    guiders = [part for name, part in modular.components.items() if "guider" in name]
    return [guider for guider in guiders if hasattr(guider, "guidance_scale") and getattr(guider, "_enabled", True)]


def _listed(names: Iterable[str], without: str | None = None) -> str:
    return ", ".join(f"`{name}`" for name in names if name != without) or "no other input"
