"""Steps of a pipeline's scheduler: reported, and without waits for the device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from omni_cli.core.compat import replace_attributes


@contextmanager
def scheduler_steps(pipeline: Any, note_step: Callable[[], None] | None) -> Iterator[None]:
    """Run `note_step`, if any, after each step of the pipeline's scheduler, if it has one that makes steps."""
    scheduler = getattr(pipeline, "scheduler", None)
    owner: Any = next((base for base in type(scheduler).__mro__ if "step" in vars(base)), None)
    on_device = getattr(getattr(pipeline, "device", None), "type", "cpu") != "cpu"
    if owner is None or (note_step is None and not on_device):
        yield
        return
    step = owner.step

    # Pipelines look at its parameters. It is the class's, because a copy of the scheduler would share an instance's.
    @functools.wraps(step)
    def step_and_note(this: object, *args: object, **kwargs: object) -> object:
        with WithoutWaits() if on_device else nullcontext():
            result = step(this, *args, **kwargs)
        if this is scheduler and note_step is not None:
            note_step()
        return result

    with replace_attributes(owner, step=step_and_note):
        yield


class WithoutWaits(TorchFunctionMode):
    """Arithmetic on numbers of the host and the device that computes the same and does not wait for the device.

    The driver takes pageable memory before a copy to the device returns. Of UniPC's seven waits per step, six are such
    copies, and one is for the error of `solve`.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.linalg.solve:
            return torch.linalg.solve_ex(*args, **kwargs).result
        if func is torch.Tensor.to and args[0].device.type == "cpu":
            kwargs.setdefault("non_blocking", True)
        return func(*args, **kwargs)
