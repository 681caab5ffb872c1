"""https://github.com/ai-dynamo/aiperf"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from checks import MODEL, TOKENIZER, URL, check, main


def measure(*words: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        words = (
            *("profile", "--model", MODEL, "--url", URL, "--tokenizer", TOKENIZER, "--request-count", "4"),
            *("--concurrency", "2", "--isl", "16", "--osl", "8", "--ui", "none", "--output-artifact-dir", folder),
            *words,
        )
        ended = subprocess.run([sys.executable, "-m", "aiperf", *words], capture_output=True, text=True)
        assert ended.returncode == 0, ended.stdout[-400:]
        found = json.loads(Path(folder, "profile_export_aiperf.json").read_text())
    assert found["request_count"]["avg"] == 4 and not found["error_summary"], found["error_summary"]


@check("benchmark by chats")
def _() -> None:
    measure("--endpoint-type", "chat", "--streaming")


@check("benchmark by completions")
def _() -> None:
    measure("--endpoint-type", "completions", "--streaming")


if __name__ == "__main__":
    main()
