"""https://aider.chat/docs/llms/openai-compat.html"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from checks import BASE_URL, KEY, MODEL, check, main

QUESTION = "What is the capital of France?"


def aider(*words: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        name = f"openai/{MODEL}"
        # A small model need not come to an end.
        Path(folder, "settings.yml").write_text(f"- name: {name}\n  extra_params:\n    max_tokens: 32\n")
        command = [sys.executable, "-m", "aider", "--model", name, "--model-settings-file", "settings.yml", *words]
        quiet = ["--no-git", "--yes-always", "--no-check-update", "--no-show-model-warnings", "--analytics-disable"]
        environment = {"OPENAI_API_BASE": BASE_URL, "OPENAI_API_KEY": KEY, "HOME": folder, "PATH": os.environ["PATH"]}
        ended = subprocess.run(
            [*command, *quiet, "--no-pretty", "--map-tokens", "0"],
            capture_output=True,
            text=True,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
        )
    assert ended.returncode == 0 and "Tokens:" in ended.stdout, ended.stdout[-300:] + ended.stderr[-300:]
    return ended.stdout[-200:]


@check("chat", "text")
def _() -> str:
    return aider("--message", QUESTION, "--chat-mode", "ask", "--no-stream")


@check("stream", "text")
def _() -> str:
    return aider("--message", QUESTION, "--chat-mode", "ask", "--stream")


@check("edit", "text")
def _() -> str:
    return aider("--message", "Write hello.py.")


if __name__ == "__main__":
    main()
