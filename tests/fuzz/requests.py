"""Lines of a `--requests` file: damaged requests between good ones, which must succeed."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterator

from fuzz.documents import bombs, damage, json_text, mutate
from fuzz.profiles import scratch
from omni_cli.config.loader import load_profile
from omni_cli.core.errors import OmniError
from omni_cli.engine.describing import get_capabilities
from omni_cli.requests.capabilities import Capabilities
from omni_cli.requests.jsonl import read_requests
from omni_cli.requests.request_spec import BadRequest

REQUESTS = [
    {"request_id": "a", "prompt": "hello", "seed": 1, "modalities": ["text", "audio"], "speaker": "Chelsie",
     "sampling": {"temperature": 0.5, "max_tokens": 8, "stop": ["x"]}, "num_inference_steps": 4, "raw": True},
    {"prompt": "look", "image": ["a.png", "b.png"], "audio": "c.wav", "guidance_scale": 0.5},
    {"prompt": "a tree", "negative_prompt": "no", "height": 64, "width": 64, "num_inference_steps": 2, "seed": 7},
    {"prompt": "waves", "num_frames": 9, "fps": "24000/1001", "arg": {"max_sequence_length": 64}},
    {"prompt": "rain", "duration": 0.5, "audio": "c.wav", "arg": {"eta": 0.5, "prompt_embeds": "@e.npy"}},
    {"prompt": "snow", "image": "a.png", "mask": "m.png", "strength": 0.5, "arg": {"sigmas": [1.0, 0.5]}},
]  # fmt: skip
PROFILES = ("tiny-omni", "tiny-image", "tiny-video", "tiny-audio", "tiny-edit")
DEFAULTS = {"seed": 3, "sampling": {"temperature": 0.2}}
GOOD = b'{"prompt": "good"}\n'
BOMBS = bombs()


def cases(rng: random.Random) -> Iterator[bytes]:
    """One line each; damage may have made several of it."""
    while True:
        kind = rng.random()
        request = rng.choice(REQUESTS)
        if kind < 0.005:
            yield rng.choice(BOMBS)
        elif kind < 0.35:
            yield damage(rng, json.dumps(request).encode())
        else:
            yield json_text(mutate(rng, json.loads(json.dumps(request)))).encode(errors="replace")


def check(case: bytes) -> str:
    """Raises unless the lines around the case are requests, and each line of it is one or a clean mistake."""
    path = scratch()
    path.write_bytes(GOOD + case + b"\n" + GOOD)
    clean = True
    for capabilities in _capabilities():
        try:
            found = read_requests(path, capabilities, DEFAULTS)
        except OmniError as error:
            raise AssertionError("a bad line took the others with it") from error
        assert not isinstance(found[0], BadRequest) and not isinstance(found[-1], BadRequest)
        for request in found:
            if isinstance(request, BadRequest):
                clean = False
                assert request.error.message and len(request.error.message) < 20_000
    return "accepted" if clean else "rejected"


@functools.cache
def _capabilities() -> tuple[Capabilities, ...]:
    return tuple(get_capabilities(load_profile(name)) for name in PROFILES)
