"""A scheduler's step without waits computes what it computes with them."""

from __future__ import annotations

import torch
from torch.overrides import TorchFunctionMode

from omni_cli.core.compat.torchvision import ensure_torchvision_importable

ensure_torchvision_importable()

from diffusers import UniPCMultistepScheduler  # noqa: E402

from omni_cli.backends.diffusers.scheduler_steps import WithoutWaits  # noqa: E402


class Calls(TorchFunctionMode):
    """Every call below a mode that was entered later, with its keys."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[object, dict[str, object]]] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append((func, dict(kwargs or {})))
        return func(*args, **(kwargs or {}))


def denoise(**modes: bool) -> tuple[torch.Tensor, Calls]:
    scheduler = UniPCMultistepScheduler(use_flow_sigmas=True, prediction_type="flow_prediction", solver_order=3)
    scheduler.set_timesteps(6)
    generator = torch.Generator().manual_seed(0)
    sample = torch.randn(1, 4, 8, 8, generator=generator)
    calls = Calls()
    for timestep in scheduler.timesteps:
        predicted = torch.randn(sample.shape, generator=generator)
        with calls:
            if modes["without_waits"]:
                with WithoutWaits():
                    sample = scheduler.step(predicted, timestep, sample, return_dict=False)[0]
            else:
                sample = scheduler.step(predicted, timestep, sample, return_dict=False)[0]
    return sample, calls


def test_a_step_of_unipc_has_equal_bits_and_copies_that_nobody_waits_for():
    expected, waiting = denoise(without_waits=False)
    made, calls = denoise(without_waits=True)
    assert torch.equal(made, expected)
    solved = [func for func, _ in waiting.seen if func is torch.linalg.solve]
    assert solved and torch.linalg.solve not in [func for func, _ in calls.seen]
    copies = [keys for func, keys in calls.seen if func is torch.Tensor.to]
    assert len(copies) > 6 and all(keys == {"non_blocking": True} for keys in copies)


def test_a_copy_from_a_device_is_waited_for():
    with Calls() as calls, WithoutWaits():
        torch.empty(2, device="meta").to("meta")
        torch.empty(2).to("meta", non_blocking=False)
    assert [keys for func, keys in calls.seen if func is torch.Tensor.to] == [{}, {"non_blocking": False}]
