"""https://llm.datasette.io"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from checks import BASE_URL, MODEL, QUESTION, WEATHER, check, fits, main

USER_PATH = Path(tempfile.mkdtemp())
SCHEMA = USER_PATH / "schema.json"
SCHEMA.write_text(json.dumps(WEATHER))
(USER_PATH / "extra-openai-models.yaml").write_text(
    f"""
- model_id: served
  model_name: {MODEL}
  api_base: {BASE_URL}
  supports_schema: true
  supports_tools: true
  vision: true
  audio: true
- model_id: completing
  model_name: {MODEL}
  api_base: {BASE_URL}
  completion: true
"""
)


def run(*words: str, model: str = "served", max_tokens: int = 16) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "llm", *words, "-m", model, "-o", "max_tokens", str(max_tokens)]
    environment = {**os.environ, "LLM_USER_PATH": str(USER_PATH), "OPENAI_API_KEY": "none"}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL)
    assert ended.returncode == 0, ended.stderr
    return ended


def llm(*words: str, **options: Any) -> str:
    return run(*words, **options).stdout.strip()


@check("chat")
def _() -> str:
    return llm(QUESTION, "--no-stream", "-s", "Be brief.")


@check("stream")
def _() -> None:
    assert llm(QUESTION)


@check("usage")
def _() -> None:
    assert "output" in run(QUESTION, "-u").stderr


@check("history")
def _() -> None:
    llm(QUESTION)
    assert llm("And of Italy?", "-c")


@check("json schema")
def _() -> None:
    assert fits(llm(QUESTION, "--schema", str(SCHEMA), max_tokens=200))


@check("json object", "text")
def _() -> str:
    return llm(f"{QUESTION} Answer as JSON.", "-o", "json_object", "1", max_tokens=100)


@check("tools auto")
def _() -> None:
    llm(QUESTION, "-T", "llm_time")


@check("completions")
def _() -> None:
    assert llm("Once upon a time", model="completing", max_tokens=8)


if __name__ == "__main__":
    main()
