"""Matrix products that lose as much as those of a right kernel may."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from omni_cli.models.rough_sums import RoughSums

EPS = float(np.finfo(np.float32).eps)


class Product(torch.nn.Module):
    """A module that runs an operation."""

    def __init__(self, operation: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self._operation = operation

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        return self._operation(*args)


def factors(num_terms: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(num_terms)
    return (
        torch.randn(200, num_terms, generator=generator).to(dtype),
        torch.randn(8, num_terms, generator=generator).to(dtype),
    )


def lost(sums: torch.Tensor | np.ndarray, a: torch.Tensor, b: torch.Tensor) -> float:
    exact = a.double() @ b.double().T
    return float((torch.as_tensor(sums).double() - exact).square().mean().sqrt() / exact.square().mean().sqrt())


@pytest.mark.parametrize("num_terms", [64, 1536])
def test_a_product_loses_what_sums_of_one_term_after_another_do(num_terms: int) -> None:
    a, b = factors(num_terms)
    in_order = np.stack([np.add.accumulate(a.numpy() * row, axis=1)[:, -1] for row in b.numpy()], axis=1)
    with RoughSums():
        rough = Product(torch.nn.functional.linear)(a, b)
    naive = lost(in_order, a, b)
    assert naive == pytest.approx(0.15 * EPS * num_terms**0.5, rel=0.1)
    assert naive < lost(rough, a, b) < 4 * naive


@pytest.mark.parametrize(
    "operation",
    [
        lambda a, b: torch.matmul(a[None], b.T[None]),
        lambda a, b: torch.addmm(torch.zeros(8), a, b.T),
        lambda a, b: torch.conv1d(a[:, None], b[:, None])[..., 0],
    ],
)
def test_every_kind_of_product_is_rough_and_repeats(operation: Callable[..., torch.Tensor]) -> None:
    a, b = factors(64)
    found = []
    for _ in range(2):
        with RoughSums():
            found.append(Product(operation)(a, b))
    assert torch.equal(*found)
    exact = operation(a, b)
    assert float((found[0] - exact).std() / exact.std()) == pytest.approx(EPS / 2 * 8, rel=0.15)


def test_a_convolution_has_the_terms_of_its_channels_and_kernel() -> None:
    sounds, kernel = torch.randn(4, 16, 400), torch.randn(3, 16, 9)
    with RoughSums():
        rough = Product(torch.conv1d)(sounds, kernel)
    exact = torch.conv1d(sounds, kernel)
    assert float((rough - exact).std() / exact.std()) == pytest.approx(EPS / 2 * 12, rel=0.15)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_types_and_the_models_own_random_numbers_stay(dtype: torch.dtype) -> None:
    a, b = factors(64, dtype)
    torch.manual_seed(3)
    drawn = torch.rand(4)
    torch.manual_seed(3)
    with RoughSums():
        rough = Product(torch.nn.functional.linear)(a, b)
        Product(torch.nn.functional.linear)(*factors(64))
        again = torch.rand(4)
    assert torch.equal(rough, torch.nn.functional.linear(a, b)) and torch.equal(drawn, again)


def test_what_no_module_sums_stays() -> None:
    a, b = factors(64)

    def fail(*_: torch.Tensor) -> torch.Tensor:
        raise ValueError

    with RoughSums():
        with pytest.raises(ValueError):
            Product(fail)(a)
        outside = a @ b.T
    assert torch.equal(outside, a @ b.T)
    assert torch.equal(Product(torch.matmul)(a, b.T), outside)
