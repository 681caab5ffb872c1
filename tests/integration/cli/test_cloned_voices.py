"""`omni generate --voice FILE` on the real command: what is said, and lines that fail alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import soundfile
from support.media_samples import tone
from support.omni_process import run_omni

from omni_cli.requests.encoding import encode_wav

VIBEVOICE = ("-p", "tiny-vibevoice", "--seed", "5", "--max-tokens", "20")


def test_voices_of_files_and_mistakes_that_the_model_finds(folder: Path) -> None:
    for name, rate in (("low", 16_000), ("same", 24_000)):
        (folder / f"{name}.wav").write_bytes(encode_wav(*tone(0, rate)))
    lines = [
        {"prompt": "A day in May.", "request_id": "low", "voice": "low.wav"},
        {"prompt": "A day in May.", "request_id": "same"},
        {"prompt": "A day in May.", "request_id": "own", "voice": "0"},
        {"prompt": "Speaker 1: Hello!\nSpeaker 2: And you?", "request_id": "two", "voice": ["low.wav", "same.wav"]},
        {"prompt": "A day in May.", "voice": ["low.wav", "same.wav"]},
        {"prompt": "Speaker 5: hello", "voice": "low.wav"},
        {"prompt": "hello", "voice": "same"},
        {"prompt": "hello", "raw": True, "voice": "low.wav"},
    ]
    (folder / "lines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    ended = run_omni(folder, "generate", *VIBEVOICE, "--requests", "lines.jsonl", "--voice", "same.wav", "--json")
    ended.check_clean()
    results = ended.document["results"]
    assert [result["status"] for result in results] == ["ok"] * 4 + ["error"] * 4
    note = "the audio file `low.wav` was resampled from 16000 Hz to the model's 24000 Hz"
    assert [len(result.get("notes", ())) for result in results[:4]] == [1, 0, 0, 1]
    assert results[0]["notes"] == results[3]["notes"] == [note] and f"warning: lines.jsonl:1: {note}" in ended.err
    spoken = {name: soundfile.read(folder / "out" / f"{name}.wav", dtype="int16")[0] for name in ("low", "same", "own")}
    assert not np.array_equal(spoken["same"], spoken["own"]), "the voice of the option is that of a line without"
    messages = [result["message"] for result in results[4:]]
    assert messages[0].startswith("2 recordings of voices, and 1 speaker")
    assert messages[1].startswith("unknown speaker `5`")
    assert messages[2].startswith("unknown speaker `same`")
    assert messages[3].startswith("a raw prompt has no voices beside it")
    assert "Traceback" not in ended.err and ended.err.count("error:") == 4
