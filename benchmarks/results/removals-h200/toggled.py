"""The chain of one engine with its mechanisms switched from round to round: toggled.py FOLDER SECONDS [chain.py's options]

Runs as a script of a tree that `make_toggles.py` has made, with chain.py's folder on the path.
"""
import asyncio
import hashlib
import json
import os
import statistics
import sys
import time
from pathlib import Path

import chain
import numpy as np

SIDES = {
    "main": "staging mrope penalties", "staging": "mrope penalties", "mrope": "penalties", "penalties": "",
}


async def measure(model, config, prompts, options, seconds, file):
    from omni_cli.engine.omni_llm import OmniLLM

    llm = OmniLLM(config)
    began = time.perf_counter()
    await llm.start()
    print(f"loaded in {time.perf_counter() - began:.1f} s", flush=True)
    streams = chain.STREAMS[options.stream][0]
    results = []
    generate_request = chain.GenerateRequest
    # Sides of a turn have the same prompts, and each a prefix cache of its own.
    chain.GenerateRequest = lambda *args, cache_salt, **kwargs: generate_request(
        *args, cache_salt=f"{file.read_text()} {turn} {cache_salt}", **kwargs
    )
    try:
        for turn in range(-1, 10_000):
            order = list(SIDES) if turn % 2 else list(SIDES)[::-1]
            # The place of each side in a turn changes, too.
            order = order[turn // 2 % len(order):] + order[: turn // 2 % len(order)]
            for clients in options.clients:
                for side in order:
                    file.write_text(SIDES[side])
                    before = {info.name: info.engagement for info in llm.stages}
                    start = time.perf_counter()
                    served = await asyncio.gather(*(
                        chain._request(model, llm, prompts.draw((turn + 2) * 100 + clients, i), i, streams)
                        for i in range(clients)
                    ))
                    e2e = time.perf_counter() - start
                    ran = {i.name: chain.since(before[i.name], i.engagement) for i in llm.stages}
                    sample = chain._sample(model, turn, e2e, served, ran)
                    copies = ran["thinker"].get("copies")
                    tokens = [[one.traces[name].output_token_ids for name in ("thinker", "talker")] for one in served]
                    results.append({"tokens": [hashlib.sha256(repr(each).encode()).hexdigest()[:16] for each in tokens],
                                    "turn": turn, "clients": clients, "side": side, "e2e_s": e2e,
                                    "copies": copies, "metrics": sample.metrics})
                    if turn < 0:
                        print(f"{clients} {side}: {e2e:.3f} s, {copies:g} copies of the thinker's, {[len(each) for each in tokens[0]]} tokens", flush=True)
            if time.perf_counter() - began > seconds:
                break
    finally:
        await llm.close()
    return results


def report(results):
    for clients in sorted({r["clients"] for r in results}):
        for metric in ("e2e_s", "median_completion_s", "thinker_itl_s", "talker_tpot_s"):
            by = {side: {} for side in SIDES}
            for r in results:
                if r["turn"] >= 0 and r["clients"] == clients:
                    by[r["side"]][r["turn"]] = r["e2e_s"] if metric == "e2e_s" else r["metrics"][metric]
            rounds_run = sorted(set.intersection(*(set(v) for v in by.values())))
            if not rounds_run:
                continue
            line = f"{clients} in flight, {metric}, {len(rounds_run)} rounds:"
            for before, side in zip([None, "main", "staging", "mrope"], SIDES, strict=True):
                line += f"   {side} {statistics.median(by[side][t] for t in rounds_run):.4g} s"
                for other in dict.fromkeys(filter(None, ("main", before))):
                    line += f", {interval([by[side][t] for t in rounds_run], [by[other][t] for t in rounds_run])} of {other}"
            print(line)
        mains = {r["turn"]: r["tokens"] for r in results if r["clients"] == clients and r["side"] == "main"}
        for side in list(SIDES)[1:]:
            equal = [a == b for r in results if r["clients"] == clients and r["side"] == side
                     for a, b in zip(r["tokens"], mains[r["turn"]], strict=True)]
            print(f"{clients} in flight, {side}: text and codes as main's in {sum(equal)} of {len(equal)} requests")


def interval(above, below):
    """Ratio of medians with its 95 % bootstrap interval over rounds."""
    pairs = np.column_stack([above, below])
    picks = np.random.default_rng(0).integers(len(pairs), size=(4000, len(pairs)))
    medians = np.median(pairs[picks], axis=1)
    low, high = np.percentile(medians[:, 0] / medians[:, 1], [2.5, 97.5])
    return f"{np.median(above) / np.median(below):.3f} [{low:.3f}, {high:.3f}]"


def main():
    folder, seconds = Path(sys.argv[1]), float(sys.argv[2])
    sys.argv = ["chain.py", "qwen2.5-omni", "-o", str(folder), *sys.argv[3:]]
    options = chain._options()
    file = folder / "toggles"
    file.write_text(SIDES["main"])
    os.environ["OMNI_TOGGLES"] = str(file)
    model = chain.MODELS["qwen2.5-omni"]
    config = chain._config(model, options.model, options)
    prompts = chain.Prompts(chain.resolve_model(config.model), chain._words_in(model, tiny=options.tiny))
    results = asyncio.run(measure(model, config, prompts, options, seconds, file))
    (folder / "toggled.json").write_text(json.dumps(results))
    report(results)


if __name__ == "__main__":
    main()
