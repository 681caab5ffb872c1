"""Weights on their way to a device; needs vLLM, too."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("vllm")


def test_weights_read_ahead_are_the_same_in_the_same_order(monkeypatch: pytest.MonkeyPatch):
    from omni_cli.backends.vllm import weights

    monkeypatch.setattr(weights, "_LARGEST_BYTES", 1 << 20)
    large = torch.rand(1 << 19)
    given = [torch.rand(3), torch.rand(1 << 18), large, *(torch.rand(size) for size in range(1, 20))]
    given.append(torch.ones(5, device="cuda"))
    made = list(weights.read_ahead((str(index), tensor) for index, tensor in enumerate(given)))
    assert [name for name, _ in made] == [str(index) for index in range(len(given))]
    assert all(map(torch.equal, [tensor for _, tensor in made], given))
    assert [tensor.is_pinned() for _, tensor in made] == [True, True, False, *([True] * 19), False]
