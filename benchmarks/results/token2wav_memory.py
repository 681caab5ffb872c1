"""Device memory of token2wav alone, by pool: probe.py SHARE(0: no limit) SIZES DEVICE"""
import statistics, sys, time
from collections import defaultdict
import token2wav_batching as tb
import torch
from models import twin
from omni_cli.models.qwen2_5_omni.settings import Token2WavConfig
from omni_cli.models.qwen2_5_omni.token2wav.synthesizer import Synthesizer

share, sizes, device = float(sys.argv[1]), sys.argv[2], torch.device(sys.argv[3])
GIB = 2**30
cuda = device.type == "cuda"
if cuda and share:
    torch.cuda.set_per_process_memory_fraction(share)

def report(label):
    if not cuda:
        print(label); return
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    pools = defaultdict(lambda: [0, 0, 0])
    for seg in torch.cuda.memory_snapshot():
        p = pools[seg["segment_pool_id"]]
        p[0] += seg["total_size"]; p[1] += seg["active_size"]; p[2] += 1
    s = torch.cuda.memory_stats()
    text = "; ".join(f"{k} {v[0]/GIB:.2f} ({v[1]/GIB:.2f} active, {v[2]})" for k, v in sorted(pools.items()))
    print(f"{label}: device {(total-free)/GIB:.2f}, allocated {torch.cuda.memory_allocated()/GIB:.2f} peak {torch.cuda.max_memory_allocated()/GIB:.2f}, reserved {torch.cuda.memory_reserved()/GIB:.2f} peak {torch.cuda.max_memory_reserved()/GIB:.2f}, retries {s['num_alloc_retries']}, ooms {s['num_ooms']} | {text}", flush=True)
    torch.cuda.reset_peak_memory_stats()

torch.backends.cudnn.deterministic = False
model = tb.make_model(sizes, device)
report("weights")
config = model.config.dit_config
draw = torch.Generator().manual_seed(1)
speaker = {"cond": torch.randn(1, config.enc_emb_dim, generator=draw).to(device), "ref_mel": torch.randn(1, 300, config.mel_dim, generator=draw).to(device)}

class Side(tb.After):
    def __init__(self):
        self.stage = Token2WavConfig.named("token2wav", backend="vllm", max_num_seqs=32, execution="cudagraph" if cuda else "eager", batching="padded", precision="tf32" if cuda else "float32")
        self.synthesizer = Synthesizer(model, {"one": speaker}, self.stage)
        self.execution_mode = self.synthesizer.execution_mode

with torch.inference_mode():
    side = Side()
    report("synthesizer")
    one = tb.requests_of([200], config.num_embeds, device)
    side.use()
    began = time.perf_counter()
    synth = side.synthesizer
    synth.capture_ahead(one[0], 32)
    report("graphs")
    print(f"captured in {time.perf_counter()-began:.1f} s")
for name, lengths in tb.workloads(200 if cuda else 10).items():
    requests = tb.requests_of(lengths, config.num_embeds, device)
    times = [tb.run(side, requests).total_s for _ in range(5)]
    report(f"{name}: {statistics.median(times[1:]):.3f} s {[round(t,3) for t in times]}")
if cuda:
    torch.cuda.empty_cache(); report("after empty_cache")
