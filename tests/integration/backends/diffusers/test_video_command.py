"""`omni generate` with a video pipeline, from the command line to the file."""

from __future__ import annotations

import json
from fractions import Fraction

from support.omni_process import run_omni
from support.videos import read_video


def test_a_video_is_written_with_its_preview(tmp_path):
    options = ("--num-frames", "6", "--fps", "24000/1001", "--output-dir", str(tmp_path / "out"), "--json")
    ended = run_omni(tmp_path, "generate", "-p", "tiny-video", *options, "a red cat")
    assert ended.code == 0, ended.err
    ((video,), (stage,)) = (json.loads(ended.out)["results"][0][name] for name in ("outputs", "stages"))
    read = read_video(tmp_path / video["path"])
    assert (read.frames.shape, read.fps) == ((5, 64, 64, 3), Fraction(24000, 1001))
    described = {name: video[name] for name in ("type", "width", "height", "num_frames", "fps")}
    assert described == {"type": "video", "width": 64, "height": 64, "num_frames": 5, "fps": 24000 / 1001}
    assert (tmp_path / video["preview"]).read_bytes()[8:12] == b"WEBP"
    assert stage["encode_s"] > 0
    notes = json.loads(ended.out)["results"][0]["notes"]
    assert notes[-1] == "the video has 5 frames, not 6 as requested"
    assert ended.err.splitlines() == [f"warning: {note}" for note in notes]
