"""The loop of every Python client's script: it prints one JSON line per check.

    python SCRIPT KIND URL MODEL PNG WAV TOKENIZER

KIND is what the server's model makes: `text`, `speech` (and text), `image` or `transcription`. A check is a function
that uses the client as its documentation does and fails where the answer is not usable; what it returns is the detail
of its line.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

KIND, URL, MODEL = sys.argv[1:4]
PNG, WAV = (Path(path).read_bytes() for path in sys.argv[4:6])
TOKENIZER = sys.argv[6]  # the model's folder
PNG_URL = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
BASE_URL = f"{URL}/v1"
KEY = "none"
QUESTION = "What is the capital of France?"
MESSAGES: list[Any] = [{"role": "user", "content": QUESTION}]
# Bounded, because weights that say nothing would otherwise never come to the end of a text.
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "enum": [1, 2]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "get_weather", "description": "The weather of a city.", "parameters": WEATHER},
}
_checks: list[tuple[str, tuple[str, ...], Callable[[], Any]]] = []


def check(feature: str, *kinds: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Register a check for servers of these kinds, by default those that answer with text."""

    def register(function: Callable[[], Any]) -> Callable[[], Any]:
        _checks.append((feature, kinds or ("text", "speech"), function))
        return function

    return register


def fits(arguments: Any) -> bool:
    """Tell whether the arguments of a call, as JSON or as an object, fit the schema."""
    found = json.loads(arguments) if isinstance(arguments, str) else arguments
    return set(found) == {"city", "days"} and found["city"] in ("Rome", "Oslo") and found["days"] in (1, 2)


def main() -> None:
    client = Path(sys.argv[0]).stem
    for feature, kinds, function in _checks:
        if KIND not in kinds:
            continue
        try:
            result = function()
            detail, ok = asyncio.run(result) if inspect.iscoroutine(result) else result, True
        except Exception as error:  # noqa: BLE001 - whatever the client raises is its verdict
            detail, ok = f"{type(error).__name__}: {error}", False
        line = {"client": client, "feature": feature, "ok": ok, "detail": str(detail or "")[:400]}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
