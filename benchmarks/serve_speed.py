"""Cost and gain of the server, with the goals of each.

`added`: a short chat through the server, interleaved with the same one on an `OmniLLM` in this process.
`together`: eight concurrent chats against one after another, through the server.
`first-audio`: a streamed spoken reply, the time to its first audio against the total time.

    python benchmarks/serve_speed.py added together first-audio
    python benchmarks/serve_speed.py first-audio --profile tiny-qwen3-omni
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import http.client
import json
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from common import interleaved, machine_line, ratio_of_medians
from serve_common import CHAT, Server, chat

MAX_ADDED_S = 0.005
MIN_SPEED_UP = 3.0
MAX_FIRST_AUDIO_SHARE = {"tiny-qwen3-omni": 0.15}
OTHERS_MAX_FIRST_AUDIO_SHARE = 0.40
SAMPLE_BYTES, SAMPLES_PER_SECOND = 2, 24_000
NUM_TOGETHER = 8


def ask(connection: http.client.HTTPConnection, body: dict) -> bytes:
    """One request on a connection that stays open."""
    connection.request("POST", CHAT, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    content = response.read()
    if response.status != 200:
        raise SystemExit(f"{response.status}: {content[:300]!r}")
    return content


def timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def measure_added(rounds: int, profile: str) -> str:
    from omni_cli.config.loader import load_profile
    from omni_cli.engine.omni_llm import OmniLLM
    from omni_cli.requests.outputs import GenerateRequest

    body = chat("hello", max_tokens=4, ignore_eos=True)
    text = frozenset({"text"})
    sampling = {"max_tokens": 4, "ignore_eos": True}

    async def direct(engine: OmniLLM, number: int) -> None:
        request = GenerateRequest(str(number), "hello", modalities=text, sampling=sampling)
        async for _ in engine.generate(request):
            pass

    loop = asyncio.new_event_loop()
    engine = None
    try:
        with Server("--profile", profile) as server:

            async def start() -> OmniLLM:
                engine = OmniLLM(load_profile(profile, [], None, False, None))
                await engine.start()
                return engine

            engine = loop.run_until_complete(start())
            connection = server.connect()
            sides = {
                "server": lambda number: ask(connection, body),
                "direct": lambda number: loop.run_until_complete(direct(engine, number)),
            }
            seconds: dict[str, list[float]] = {name: [] for name in sides}
            for number in range(20):
                for side in sides.values():
                    side(-1 - number)
            for number, name in interleaved(list(sides), rounds):
                seconds[name].append(timed(lambda name=name, number=number: sides[name](number)))
    finally:
        if engine is not None:
            loop.run_until_complete(engine.close())
        loop.close()
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    # Differences of neighbours cancel what slows both for a while.
    added = statistics.median(a - b for a, b in zip(seconds["server"], seconds["direct"], strict=True))
    return (
        f"added        server {medians['server'] * 1e3:.2f} ms   direct {medians['direct'] * 1e3:.2f} ms   "
        f"median of differences {added * 1e3:.2f} ms   {rounds} pairs   "
        f"{_verdict(added <= MAX_ADDED_S, f'at most {MAX_ADDED_S * 1e3:.0f} ms')}"
    )


def measure_together(rounds: int, profile: str) -> str:
    bodies = [chat(f"Tell me of {number}.", max_tokens=64, ignore_eos=True) for number in range(NUM_TOGETHER)]
    with Server("--profile", profile) as server, ThreadPoolExecutor(NUM_TOGETHER) as pool:
        connections = [server.connect() for _ in bodies]
        sides = {
            "one by one": lambda: [ask(connections[0], body) for body in bodies],
            "together": lambda: list(pool.map(ask, connections, bodies)),
        }
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        for side in sides.values():
            side()
        for _, name in interleaved(list(sides), rounds):
            seconds[name].append(timed(sides[name]))
    ratio = ratio_of_medians(seconds["one by one"], seconds["together"])
    return (
        f"together     {NUM_TOGETHER} chats: one by one {statistics.median(seconds['one by one']):.2f} s   "
        f"together {statistics.median(seconds['together']):.2f} s   ratio {ratio}   {rounds} rounds   "
        f"{_verdict(ratio.value >= MIN_SPEED_UP, f'at least {MIN_SPEED_UP:g}')}"
    )


def measure_first_audio(rounds: int, profile: str) -> str:
    body = chat("hello", modalities=["text", "audio"], audio={"format": "pcm16"}, stream=True)
    shares, firsts_s, wholes_s, audio_s = [], [], [], 0.0
    with Server("--profile", profile) as server:
        for number in range(rounds + 1):
            connection = server.connect()
            began = time.perf_counter()
            connection.request("POST", CHAT, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            first_s, num_bytes = None, 0
            for line in response:
                if b'"data":' not in line:
                    continue
                if first_s is None:
                    first_s = time.perf_counter() - began
                delta = json.loads(line.removeprefix(b"data: "))["choices"][0]["delta"]
                num_bytes += len(base64.b64decode(delta["audio"]["data"]))
            whole_s = time.perf_counter() - began
            connection.close()
            if first_s is None:
                raise SystemExit("no audio came")
            audio_s = num_bytes / SAMPLE_BYTES / SAMPLES_PER_SECOND
            if number > 0:  # the first one warms up
                shares.append(first_s / whole_s)
                firsts_s.append(first_s)
                wholes_s.append(whole_s)
    share, goal = statistics.median(shares), MAX_FIRST_AUDIO_SHARE.get(profile, OTHERS_MAX_FIRST_AUDIO_SHARE)
    return (
        f"first-audio  {profile}: after {share:.1%} of the whole reply (range {min(shares):.1%} to {max(shares):.1%}), "
        f"{statistics.median(firsts_s):.3f} of {statistics.median(wholes_s):.2f} s for {audio_s:.1f} s of speech   "
        f"{rounds} rounds   {_verdict(share <= goal, f'at most {goal:.0%}')}"
    )


def _verdict(met: bool, goal: str) -> str:
    return f"goal: {goal}, {'met' if met else 'MISSED'}"


MEASUREMENTS = {
    "added": (measure_added, 200, "tiny-omni"),
    "together": (measure_together, 5, "small-omni"),
    "first-audio": (measure_first_audio, 5, "small-omni"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=[*MEASUREMENTS, []], help="default: all")
    parser.add_argument("--rounds", type=int, help="default: what each needs")
    parser.add_argument("--profile", help="default: small-omni, and tiny-omni for what the server adds")
    options = parser.parse_args()
    for name in options.what or MEASUREMENTS:
        measure, rounds, profile = MEASUREMENTS[name]
        sys.stdout.write(measure(options.rounds or rounds, options.profile or profile) + "\n")
        sys.stdout.flush()
    sys.stdout.write(machine_line() + "\n")


if __name__ == "__main__":
    main()
