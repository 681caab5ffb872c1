"""Measure what an MPS server adds to a process that has the device to itself: microseconds per operation.

    python mps_kernels.py plain             # then below a server: CUDA_MPS_PIPE_DIRECTORY=DIR nvidia-cuda-mps-control -d
    python mps_kernels.py mps
    python mps_kernels.py mps --attention   # of a decode, with vLLM's FlashAttention 3
    python mps_kernels.py plain --stack 256 # MiB of a context whose threads have stacks of so many bytes

Each time is the least of five rows of replays, over the number of operations in a graph. With `--attention`, 1 to 32
requests of 128 to 16,384 keys, by the most splits of a sequence's keys (vLLM's own is 32).
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import time
from collections.abc import Callable

import torch
import triton
from triton import language as tl

NUM_OPERATIONS = 600
NUM_LAYERS = 48
BLOCK_SIZE, NUM_BLOCKS = 16, 40_000
# Heads of queries, heads of keys, and their size.
HEADS = {"30B thinker": (32, 4, 128), "30B talker": (16, 2, 128), "7B thinker": (28, 4, 128)}


@triton.jit
def multiply(rows, weights, products, num_inputs: tl.constexpr, num_columns: tl.constexpr):  # type: ignore[no-untyped-def]
    program = tl.program_id(0)
    row, column, part = tl.arange(0, 16), tl.arange(0, num_columns), tl.arange(0, 128)
    summed = tl.zeros((16, num_columns), tl.float32)
    for start in range(0, num_inputs, 128):
        left = tl.load(rows + row[:, None] * num_inputs + start + part[None, :])
        right = tl.load(weights + (program * num_columns + column)[None, :] * num_inputs + start + part[:, None])
        summed += tl.dot(left, right)
    out = products + row[:, None] * (132 * num_columns) + program * num_columns + column[None, :]
    tl.store(out, summed.to(tl.bfloat16))


def timed(body: Callable[[], object], *, graph: bool = True, repeats: int = 40) -> float:
    """Return the seconds of one `body`."""
    body()
    torch.cuda.synchronize()
    run = body
    if graph:
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            body()
        run = captured.replay
    run()
    torch.cuda.synchronize()
    least = float("inf")
    for _ in range(5):
        began_s = time.perf_counter()
        for _ in range(repeats):
            run()
        torch.cuda.synchronize()
        least = min(least, (time.perf_counter() - began_s) / repeats)
    return least


def say(label: str, name: str, body: Callable[[], object], **options: object) -> None:
    seconds = timed(body, **options)  # type: ignore[arg-type]
    print(f"{label:12s} {name:36s} {1e3 * seconds:8.3f} ms, {1e6 * seconds / NUM_OPERATIONS:6.2f} us each", flush=True)


def measure_operations(label: str) -> None:
    each = range(NUM_OPERATIONS)
    small, wide = torch.zeros(1024, device="cuda"), torch.zeros(132 * 2048 * 4, device="cuda")
    say(label, "small sums", lambda: [small.add_(1) for _ in each])
    say(label, "small sums, no graph", lambda: [small.add_(1) for _ in each], graph=False, repeats=10)
    say(label, "sums of 4 MiB", lambda: [wide.add_(1) for _ in each])
    rows = torch.randn(16, 2048, device="cuda", dtype=torch.bfloat16)
    weights = [torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16) for _ in each]
    for number in (1, 8):
        some = rows[:number]
        name = f"products {number} x 2048 x 2048, 5 GB"
        say(label, name, lambda some=some: [torch.mm(some, weight) for weight in weights])
    say(label, "products 8 x 2048 x 2048, the same", lambda: [torch.mm(rows[:8], weights[0]) for _ in each])
    stacked = torch.randn(132 * 64, 2048, device="cuda", dtype=torch.bfloat16)
    products = torch.empty(16, 132 * 64, device="cuda", dtype=torch.bfloat16)

    def run_triton() -> None:
        multiply[(132,)](rows, stacked, products, 2048, 64, num_stages=3)

    say(label, "products by Triton, 132 programs", lambda: [run_triton() for _ in each])
    host = torch.zeros(1024, pin_memory=True)
    say(label, "host to device, 4 KiB, no graph", lambda: [small.copy_(host, non_blocking=True) for _ in each],
        graph=False, repeats=10)  # fmt: skip
    event = torch.cuda.Event()

    def round_trip() -> None:
        small.add_(1)
        host.copy_(small, non_blocking=True)
        event.record()
        event.synchronize()

    say(label, "sum, device to host, wait, no graph", lambda: [round_trip() for _ in each], graph=False, repeats=4)


def measure_attention(label: str) -> None:
    from vllm.vllm_flash_attn.flash_attn_interface import flash_attn_varlen_func, get_scheduler_metadata

    for name, (num_queries, num_keys, size) in HEADS.items():
        cache = torch.randn(2, NUM_BLOCKS, BLOCK_SIZE, num_keys, size, device="cuda", dtype=torch.bfloat16)
        for number in (1, 8, 32):
            for length in (128, 2048, 16384):
                row = []
                for splits in (1, 4, 8, 16, 32):
                    num_blocks = (4096 if length <= 4096 else 32768) // BLOCK_SIZE
                    table = torch.arange(number * num_blocks, device="cuda", dtype=torch.int32) % NUM_BLOCKS
                    lengths = torch.full((number,), length, device="cuda", dtype=torch.int32)
                    starts = torch.arange(number + 1, device="cuda", dtype=torch.int32)
                    queries = torch.randn(number, num_queries, size, device="cuda", dtype=torch.bfloat16)
                    metadata = get_scheduler_metadata(
                        batch_size=number, max_seqlen_q=1, max_seqlen_k=num_blocks * BLOCK_SIZE,
                        num_heads_q=num_queries, num_heads_kv=num_keys, headdim=size, cache_seqlens=lengths,
                        qkv_dtype=torch.bfloat16, cu_seqlens_q=starts, page_size=BLOCK_SIZE, causal=True,
                        num_splits=splits,
                    )  # fmt: skip
                    arguments = {
                        "q": queries, "k": cache[0], "v": cache[1], "out": torch.empty_like(queries),
                        "cu_seqlens_q": starts, "max_seqlen_q": 1, "seqused_k": lengths,
                        "max_seqlen_k": num_blocks * BLOCK_SIZE, "softmax_scale": size**-0.5, "causal": True,
                        "block_table": table.view(number, num_blocks), "scheduler_metadata": metadata,
                        "fa_version": 3, "num_splits": splits,
                    }  # fmt: skip

                    def attend(arguments: dict[str, object] = arguments) -> None:
                        for _ in range(NUM_LAYERS):
                            flash_attn_varlen_func(**arguments)

                    row.append(f"{splits}: {1e6 * timed(attend, repeats=20) / NUM_LAYERS:.2f}")
                print(
                    f"{label:6s} {name:12s} {number:3d} x {length:6d} keys, us by splits: {', '.join(row)}", flush=True
                )


def measure_context(num_bytes: int) -> None:
    torch.cuda.init()
    torch.cuda.synchronize()
    error = ctypes.CDLL("libcuda.so.1").cuCtxSetLimit(0, ctypes.c_size_t(num_bytes)) if num_bytes else 0
    free, total = torch.cuda.mem_get_info()
    print(f"stacks of {num_bytes or 'unchanged'} bytes (error {error}): {(total - free) / 2**20:.0f} MiB of the device")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("label")
    parser.add_argument("--attention", action="store_true")
    parser.add_argument("--stack", type=int, metavar="BYTES", help="0: as it is")
    options = parser.parse_args()
    if options.stack is not None:
        measure_context(options.stack)
    elif options.attention:
        measure_attention(options.label)
    else:
        measure_operations(options.label)
    return 0


if __name__ == "__main__":
    sys.exit(main())
