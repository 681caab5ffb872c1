"""Attention of Whisper's encoder by vLLM's kernel for CPUs, against torch's."""

from __future__ import annotations

from omni_cli.core.compat.libraries import prepare_libraries  # isort: skip

prepare_libraries()

import pytest  # noqa: E402
import torch  # noqa: E402
from torch.nn import functional  # noqa: E402
from vllm.config import VllmConfig, set_current_vllm_config  # noqa: E402
from vllm.model_executor.models.whisper import WhisperEncoderAttention  # noqa: E402
from vllm.platforms import current_platform  # noqa: E402

from omni_cli.models.transcription.encoder_attention import EncoderAttention  # noqa: E402

pytestmark = pytest.mark.skipif(not current_platform.is_cpu(), reason="the kernel is for CPUs")


def make_layer(num_heads: int, size: int) -> WhisperEncoderAttention:
    current_platform.import_kernels()
    with set_current_vllm_config(VllmConfig()):
        return WhisperEncoderAttention(num_heads, size, size**-0.5)


def make_rows(num_sounds: int, length: int, width: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Queries, keys and values as one product makes them, beside each other."""
    rows = torch.randn(num_sounds, length, 3 * width, generator=torch.Generator().manual_seed(length)).to(dtype)
    return list(rows.split(width, -1))


def torchs(layer: WhisperEncoderAttention, rows: list[torch.Tensor]) -> torch.Tensor:
    heads = (each.unflatten(-1, (-1, layer.head_size)).transpose(1, 2) for each in rows)
    made: torch.Tensor = functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
    return made


@pytest.mark.parametrize(("num_heads", "size", "length"), [(6, 64, 1500), (2, 32, 200), (3, 80, 33), (2, 64, 1)])
def test_rows_are_torchs_and_a_sounds_own(num_heads: int, size: int, length: int) -> None:
    layer, rows = make_layer(num_heads, size), make_rows(3, length, num_heads * size)
    made = layer(*rows)
    assert isinstance(layer, EncoderAttention), "vLLM makes ours"
    torch.testing.assert_close(made, torchs(layer, rows), rtol=1e-5, atol=1e-5)
    for number in range(3):
        alone = layer(*(each[number : number + 1] for each in rows))
        assert torch.equal(alone[0], made[number]), "the bits depend on the sounds beside it"
    assert torch.equal(layer(*(each[0] for each in rows)), made[0]), "a sound without a batch"


@pytest.mark.parametrize(("size", "dtype"), [(16, torch.float32), (64, torch.bfloat16)])
def test_what_the_kernel_is_not_for_is_torchs(size: int, dtype: torch.dtype) -> None:
    layer, rows = make_layer(2, size), make_rows(2, 70, 2 * size, dtype)
    assert torch.equal(layer(*rows), torchs(layer, rows))


def test_sounds_in_one_row_stay_apart() -> None:
    layer, rows = make_layer(2, 64), make_rows(1, 90, 128)
    made = layer(*rows, cu_seqlens=torch.tensor([0, 40, 90], dtype=torch.int32))
    parts = [torchs(layer, [each[:, begin:end] for each in rows]) for begin, end in ((0, 40), (40, 90))]
    torch.testing.assert_close(made, torch.cat(parts, dim=1), rtol=1e-5, atol=1e-5)
