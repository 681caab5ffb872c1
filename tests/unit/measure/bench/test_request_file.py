"""A file of requests as a workload: its allowed fields, and its fingerprint."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from omni_cli.config.loader import load_profile
from omni_cli.core.errors import UsageError
from omni_cli.measure.bench.workload import Workload, describe_requests, measured_requests
from omni_cli.requests.encoding import encode_png, encode_wav

CONFIG = load_profile("tiny-qwen3-omni")


def write(folder: Path, *lines: dict[str, object]) -> Path:
    path = folder / "requests.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def describe(path: Path) -> str:
    return describe_requests(path, CONFIG, lambda _: None).sha256


def test_requests_with_media(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encode_png(np.zeros((32, 48, 3), np.uint8)))
    (tmp_path / "a.wav").write_bytes(encode_wav(np.zeros(1600, np.float32), 16_000))
    path = write(tmp_path, {"prompt": "a", "image": "a.png", "seed": 7}, {"prompt": "b", "audio": ["a.wav", "a.wav"]})
    found = describe_requests(path, CONFIG, lambda _: None)
    assert found.num_requests == 2
    (first, has_seed), (second, has_second_seed) = measured_requests(path, CONFIG)
    assert first.media.images[0].shape == (32, 48, 3) and first.seed == 7 and has_seed
    assert len(second.media.audio) == 2 and not has_second_seed
    workload = Workload(batch_size=2, requests=found).describe(CONFIG)
    assert workload["requests_sha256"] == found.sha256 and "input_len" not in workload
    (tmp_path / "a.png").write_bytes(encode_png(np.ones((32, 48, 3), np.uint8)))
    changed = Workload(batch_size=2, requests=describe_requests(path, CONFIG, lambda _: None)).describe(CONFIG)
    assert changed["fingerprint"] != workload["fingerprint"], "another image is another workload"


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ({"prompt": "a", "modalities": ["text"]}, "`modalities` has no effect in a measurement", "--stage"),
        ({"prompt": "a", "sampling": {"max_tokens": 3}}, "`sampling.max_tokens` would change the work", "--output-len"),
        ({"prompt": "a", "image": "none.png"}, "none.png", None),
        ({"prompt": "a", "num_inference_step": 3}, "unknown key `num_inference_step`", None),
        ({"prompt": "a", "height": 64}, "`height` has no effect with profile `tiny-qwen3-omni`", None),
    ],
)
def test_a_line_that_cannot_be_measured(
    tmp_path: Path, line: dict[str, object], message: str, hint: str | None
) -> None:
    path = write(tmp_path, {"prompt": "good"}, line)
    with pytest.raises(UsageError) as raised:
        describe(path)
    assert raised.value.message.startswith(f"{path}:2: ") and message in raised.value.message
    assert hint is None or hint in (raised.value.hint or "")
