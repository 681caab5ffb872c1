"""The first requests after an engine is ready, one by one: are they as fast as the tenth?

    PYTHONPATH=. python benchmarks/gpu/first_requests.py qwen2.5-omni --model FOLDER [--order streamed whole]

Requests as those of `chain.py`, ten of each way of sending audio, in the given order. Prints the total and the first
audio of each in seconds, the ratio of the first to the median of the last five, the names of Triton's kernels that were
compiled since the engine was ready, and each stage's device memory.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from chain import MODELS, SAMPLE_RATE, _config, _request, _words_in

from omni_cli.checkpoints.resolve import resolve_model
from omni_cli.config.schema import EngineConfig
from omni_cli.engine.omni_llm import OmniLLM
from omni_cli.measure.bench.prompts import Prompts

_WAYS = {"whole": False, "streamed": True}


def main() -> int:
    options = _options()
    model = MODELS[options.chain]
    config = _config(model, options.model, options)
    prompts = Prompts(resolve_model(config.model), _words_in(model, tiny=options.tiny))
    asyncio.run(_run(options, config, prompts))
    return 0


async def _run(options: argparse.Namespace, config: EngineConfig, prompts: Prompts) -> None:
    llm = OmniLLM(config)
    began_s = time.perf_counter()
    await llm.start()
    ready_s = time.time()
    _say(f"ready after {time.perf_counter() - began_s:.1f} s")
    try:
        for way in options.order:
            ends, audio = [], []
            for number in range(options.requests):
                prompt = prompts.draw(number + 1000 * _WAYS[way], 0)
                served = await _request(MODELS[options.chain], llm, prompt, number, _WAYS[way])
                assert served.audio_s * SAMPLE_RATE > 0
                ends.append(served.end_s)
                audio.append(served.first_audio_s)
            for name, values in (("total", ends), ("first audio", audio)):
                ratio = values[0] / statistics.median(values[-5:])
                _say(f"{way}, {name}: {' '.join(f'{value:.3f}' for value in values)} s; first {ratio:.2f} of the last")
        drawn = [prompts.draw(5000, index) for index in range(options.clients)]
        await asyncio.gather(
            *(_request(MODELS[options.chain], llm, prompt, seed, True) for seed, prompt in enumerate(drawn))
        )
    finally:
        used = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader"], capture_output=True)
        _say(f"device memory used: {used.stdout.decode().strip()}")
        for info in llm.stages:
            peaks = {name: round(size / 2**30, 2) for name, size in info.run_memory_bytes.items()}
            _say(f"{info.name}: loaded in {info.load_s:.1f} s, GiB {peaks}")
        await llm.close()
    cache = Path(os.environ.get("TRITON_CACHE_DIR", Path.home() / ".triton" / "cache"))
    later = {path.stem for path in cache.rglob("*.cubin") if path.stat().st_mtime > ready_s}
    _say(f"compiled by Triton since ready: {', '.join(sorted(later)) or 'nothing'}")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("chain", choices=["qwen2.5-omni"])
    parser.add_argument("--model", metavar="FOLDER", help="a folder that `omni_checkpoint.py` has written")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try the script")
    parser.add_argument("--order", choices=_WAYS, nargs="+", default=list(_WAYS))
    parser.add_argument("--requests", type=int, default=10)
    parser.add_argument("--clients", type=int, default=32, help="at once afterwards, for the memory")
    parser.add_argument("--text-tokens", type=int, default=128)
    parser.add_argument("--codes", type=int)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as of `omni generate`")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
