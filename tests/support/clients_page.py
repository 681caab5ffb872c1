"""docs/clients.md from the results of a run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from support.clients import ALL_KINDS, CLIENTS, FAILS, SCRIPTS, Client, Row, server_arguments, version

INTRODUCTION = """# Clients

Real clients against `omni serve`, unmodified, in the versions below. Each has a script in `tests/clients` that uses it
as its documentation does, with `tiny-omni` (text and speech), SmolLM2-135M-Instruct (text), `tiny-image` and a Whisper
of random weights. A feature works if every answer was usable: a call of a tool fits its schema, an MP3 file is one,
usage counts tokens. Weights like these call no tools by themselves, so *tools auto* means that the request is answered,
with words or calls.

`python scripts/clients_page.py --write` makes this page; a nightly test runs the same scripts, and every change runs
those of openai-python and openai-node.

Two clients are servers of their own and not in the nightly test. They were run once, in front of the same models:
[Open WebUI](https://docs.openwebui.com) 0.12.4 lists models, chats, streams, speaks and makes images (give it the name
of the served model for speech, or start `omni serve` with `--served-model-name tts-1`), and the proxy of
[litellm](https://docs.litellm.ai) 1.108.7 chats, streams, follows JSON schemas, completes, answers Responses and
Anthropic messages, speaks and makes images, with `openai/` and `hosted_vllm/`.

The servers were started by `omni serve` with these options. SmolLM2's chat template has no tools, so a parser is named:

OPTIONS
"""


def page(rows: Iterable[Row]) -> str:
    """Return the page; clients without a row are not on it."""
    found: dict[str, dict[str, bool]] = {}
    for row in sorted(rows, key=lambda row: ALL_KINDS.index(row.kind)):
        features = found.setdefault(row.feature, {})
        features[row.client] = features.get(row.client, True) and row.ok
    clients = [client for client in CLIENTS if any(client.name in features for features in found.values())]
    introduction = INTRODUCTION.replace("OPTIONS", "\n".join(f"- {kind}: `{started_with(kind)}`" for kind in ALL_KINDS))
    parts = [introduction, versions(clients), "## What works\n", _matrix(clients, found), _failures(clients, found)]
    return "\n".join(parts)


def started_with(kind: str) -> str:
    """Return the options of the server for a kind of scripts."""
    folder = {"text": "SmolLM2-135M-Instruct", "transcription": "whisper"}.get(kind)
    return " ".join(server_arguments(kind, None if folder is None else Path(folder)))


def title(client: Client) -> str:
    return "openai-node" if client.name == "openai_node" else TITLES.get(client.name, client.package)


TITLES = {
    "openai_python": "openai-python",
    "vercel_ai": "Vercel AI SDK",
    "langchain_chat": "LangChain",
    "pydantic_agent": "pydantic-ai",
    "llama_index_llm": "LlamaIndex",
    "aider_cli": "aider",
    "livekit_agents": "LiveKit Agents",
    "pipecat_services": "Pipecat",
    "vllm_bench": "vllm bench serve",
}


def _link(client: Client) -> str:
    script = SCRIPTS / f"{client.name}{'.mjs' if client.node else '.py'}"
    found = re.search(r"https://[^\s\"]+", script.read_text())
    assert found, f"{script} names no documentation"
    return found.group()


def versions(clients: Sequence[Client] = CLIENTS) -> str:
    rows = [(f"[{title(client)}]({_link(client)})", f"`{client.package}` {version(client)}") for client in clients]
    return _table(("client", "package"), rows)


def _matrix(clients: Sequence[Client], found: dict[str, dict[str, bool]]) -> str:
    words = {True: "yes", False: "**no**", None: ""}
    rows = [(name, *(words[features.get(client.name)] for client in clients)) for name, features in found.items()]
    return _table(("", *map(title, clients)), rows)


def _failures(clients: Sequence[Client], found: dict[str, dict[str, bool]]) -> str:
    lines = [
        f"- {name}, {title(client)}: {FAILS.get((client.name, name), 'unexpected')}\n"
        for name, features in found.items()
        for client in clients
        if features.get(client.name) is False
    ]
    return "".join(["What does not:\n\n", *lines]) if lines else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
