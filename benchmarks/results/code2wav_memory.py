"""Device memory of Qwen3-Omni's code2wav at its real size, random weights: probe.py EXECUTION STREAM_CHUNK SHARE"""

import sys
import time

from omni_cli.compat.torchvision import ensure_torchvision_importable

ensure_torchvision_importable()

import torch  # noqa: E402
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeCode2WavConfig  # noqa: E402
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav  # noqa: E402

from omni_cli.execution.cuda_graphs import CudaGraphBackend  # noqa: E402
from omni_cli.models.codec.streaming import DecoderState, Piece, StreamingCodecDecoder  # noqa: E402

GIB = 2**30
WHOLE, REQUESTS = 256, 32


def report(label: str) -> None:
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    peak = torch.cuda.max_memory_allocated() / GIB
    reserved = torch.cuda.max_memory_reserved() / GIB
    print(f"{label}: device {(total - free) / GIB:.2f}, peak {peak:.2f}, reserved {reserved:.2f} GiB", flush=True)
    torch.cuda.reset_peak_memory_stats()


execution, chunk = sys.argv[1], int(sys.argv[2])
torch.cuda.set_per_process_memory_fraction(float(sys.argv[3]))
config = Qwen3OmniMoeCode2WavConfig()
device = torch.device("cuda")
torch.set_default_dtype(torch.bfloat16)
with torch.inference_mode(), device:
    model = Qwen3OmniMoeCode2Wav(config).eval()
report("weights")
decoder = StreamingCodecDecoder(model)
if execution == "cudagraph":
    example = torch.zeros((REQUESTS, config.num_quantizers, 1), dtype=torch.long, device=device)
    backend = CudaGraphBackend(device)
    decoder.use_graphs(backend, stage="code2wav", sizes=(chunk, chunk), whole=WHOLE, example=example)
    report("graphs ahead of requests")
for num_requests, num_frames in ((1, WHOLE), (4, WHOLE), (REQUESTS, WHOLE), (REQUESTS, chunk), (1, chunk)):
    states = [DecoderState() for _ in range(num_requests)]
    for number in range(3):
        codes = torch.zeros((config.num_quantizers, num_frames), dtype=torch.long, device=device)
        decoder.decode([Piece(codes, state, number == 2) for state in states])
    began = time.perf_counter()
    states = [DecoderState() for _ in range(num_requests)]
    decoder.decode([Piece(codes, state, True) for state in states])
    torch.cuda.synchronize()
    report(f"{num_requests} requests, pieces of {num_frames} frames, {time.perf_counter() - began:.3f} s")
