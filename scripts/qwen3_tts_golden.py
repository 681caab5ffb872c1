"""Write what Qwen3-TTS's publisher makes of the built-in checkpoints, for tests without its package.

`.reference-qwen3-tts/bin/python scripts/qwen3_tts_golden.py FOLDER FILE.json`, after `omni models build` of
`tiny-qwen3-tts`, `tiny-qwen3-tts-design` and `tiny-qwen3-tts-base` below FOLDER.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from omni_cli.models.qwen3_tts import publisher

MAX_TOKENS = 12
EVERY = 64
CALLS: dict[str, list[dict[str, Any]]] = {
    "tiny-qwen3-tts": [
        {"text": "Hello, and welcome!", "speaker": "vivian", "language": "english"},
        {"text": "Good morning.", "speaker": "dylan", "instruct": "Very slowly."},
    ],
    "tiny-qwen3-tts-design": [{"text": "Hello, and welcome!", "instruct": "A warm voice.", "language": "german"}],
    "tiny-qwen3-tts-base": [
        {"text": "Hello, and welcome!", "ref_text": "The sea.", "x_vector_only_mode": False},
        {"text": "Hello, and welcome!", "x_vector_only_mode": True},
    ],
}


def recording(rate: int) -> np.ndarray:
    """Return 1.5 s of a rising tone."""
    seconds = np.arange(rate * 3 // 2) / rate
    return (0.4 * np.sin(2 * np.pi * (200 + 300 * seconds) * seconds)).astype(np.float32)


def main() -> None:
    folder, target = map(Path, sys.argv[1:])
    found: dict[str, Any] = {"spoken": {}, "encoded": {}}
    for name, calls in CALLS.items():
        model = publisher.load(str(folder / name), "float32", "sdpa")
        more: dict[str, Any] = {"ref_audio": (recording(24_000), 24_000)} if name.endswith("base") else {}
        made = [publisher.speak(model, {**call, **more, "max_new_tokens": MAX_TOKENS}, {}) for call in calls]
        found["spoken"][name] = [
            {
                "frames": list(map(list, spoken["codes"])),
                "samples": spoken["waveform"][::EVERY].round(6).tolist(),
                "num_input_tokens": spoken["num_input_tokens"],
            }
            for spoken, _ in made
        ]
    for rate in (16_000, 24_000, 44_100):
        (item,) = model.create_voice_clone_prompt((recording(rate), rate), ref_text="The sea.")
        embedding = item.ref_spk_embedding.numpy().round(6).tolist()
        found["encoded"][str(rate)] = {"codes": item.ref_code.tolist(), "embedding": embedding}
    text = json.dumps(found)
    target.write_text(text.replace("], [", "],\n[") + "\n")


if __name__ == "__main__":
    main()
