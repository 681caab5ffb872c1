"""Prints the largest differences between fused kernels, token2wav's and code2wav's, and torch's operations, as JSON.

    TRITON_INTERPRET=1 python -m support.fused_kernels CASES

A process of its own, because Triton reads its mode when it is imported; CASES are those of the vocoder's activation.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import torch

from omni_cli.core.compat.torchvision import ensure_torchvision_importable

ensure_torchvision_importable()

from omni_cli.models.codec.streaming import DecoderState, Piece  # noqa: E402
from omni_cli.models.qwen2_5_omni.token2wav.cuda.dit_kernels import (  # noqa: E402
    add_and_norm,
    advance,
    attend,
    linear_gelu,
)
from omni_cli.models.qwen2_5_omni.token2wav.platform import Platform  # noqa: E402
from omni_cli.models.qwen2_5_omni.token2wav.request import DenoisingSettings  # noqa: E402
from omni_cli.models.qwen2_5_omni.token2wav.velocity import Layout  # noqa: E402
from support.code2wav import KINDS, code2wav, decoders  # noqa: E402
from support.plain_activation import fused_and_plain  # noqa: E402


def norms() -> Iterator[tuple[str, torch.Tensor]]:
    hidden, branch = (part.contiguous() for part in torch.randn(2, 3, 40, 2).unbind(-1))
    gate, scale, shift = torch.randn(40, 3).mT.contiguous()
    made = add_and_norm(hidden, branch, gate, scale, shift, 1e-6)
    expected = Platform().add_and_norm(hidden, branch, gate, scale, shift, 1e-6)
    yield "sum", made[0] - expected[0]
    yield "norm", made[1] - expected[1]


def products() -> Iterator[tuple[str, torch.Tensor]]:
    rows, weight, bias = torch.randn(70, 128), torch.randn(64, 128) / 128**0.5, torch.randn(64)
    expected = torch.nn.functional.gelu(torch.nn.functional.linear(rows, weight, bias), approximate="tanh")
    yield "product and GELU", linear_gelu(rows, weight, bias) - expected


def attention() -> Iterator[tuple[str, torch.Tensor]]:
    layout = Layout((30, 24, 5), 12, 8)
    qkv, carried = torch.randn(8, 12, 3, 2, 16), torch.zeros(8, 12, 2, 2, 16)
    carried[[0, 3]] = torch.randn(2, 12, 2, 2, 16)
    angles = torch.randn(8, 12, 1, 8)
    cos, sin = (torch.cat([table, table], dim=-1) for table in (angles.cos(), angles.sin()))
    for back, ahead, given in ((0, 0, None), (0, 1, None), (1, 0, None), (1, 0, carried)):
        diff = layout.block_diff(None if given is None else [0, 3])
        looks = {"back": bool(back), "ahead": bool(ahead)}
        fused, plain = qkv.clone(), qkv.clone()
        made = attend(fused, cos, sin, diff, given, **looks)
        expected = Platform().attend(plain, cos, sin, diff, given, **looks)
        yield f"attention {back} {ahead} {given is not None}", made - expected
    yield "kept keys and values", (fused - plain)[:, :, 1:]


def steps() -> Iterator[tuple[str, torch.Tensor]]:
    times = DenoisingSettings(4, 0.5, -1.0).times(torch.device("cpu"))[1:]
    locations = torch.tensor([[0, 1, 2, 4], [5, 6, 7, 9]])
    for rows in (locations, locations[:1]):
        frames, packed, slopes = torch.randn(4, 20), torch.zeros(1, 10, 20), torch.empty(3, 4, 20)
        plain, fused = ([tensor.clone() for tensor in (frames, slopes, packed)] for _ in range(2))
        for part, predicted in enumerate(torch.randn(4, 1, 10, 20)):
            for run, (frames, slopes, packed) in ((Platform().advance, plain), (advance, fused)):
                run(predicted, rows, frames, slopes, times, packed, part, 0.5)
            yield f"step {len(rows)} {part}", plain[2] - fused[2]
        yield f"step {len(rows)}", plain[0] - fused[0]


def code2wavs() -> Iterator[tuple[str, torch.Tensor]]:
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "codebook_dim": 32}
    sizes |= {"intermediate_size": 64, "num_hidden_layers": 1, "latent_dim": 32}
    codes = torch.randint(64, (2, 4, 3))
    for kind in KINDS:
        # Numbers of channels that are not powers of two, a row that sees no other, and rows before the first.
        module = code2wav(kind, codebook_size=64, num_quantizers=4, decoder_dim=192, upsample_rates=(3, 2), **sizes)
        streams = [(decoder, [DecoderState() for _ in codes]) for decoder in decoders(module)]
        for begin, end in ((0, 1), (1, 3)):
            made = [
                decoder.decode([Piece(row[:, begin:end], state) for row, state in zip(codes, states, strict=True)])
                for decoder, states in streams
            ]
            yield f"{kind} from frame {begin}", torch.sub(*map(torch.stack, made))


def main() -> None:
    torch.manual_seed(0)
    found = {str(case): torch.sub(*fused_and_plain(*case)) for case in json.loads(sys.argv[1])}
    for kernels in (norms, products, attention, steps, code2wavs):
        found |= kernels()
    sys.stdout.write(json.dumps({name: difference.abs().max().item() for name, difference in found.items()}))


if __name__ == "__main__":
    main()
