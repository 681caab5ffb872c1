"""A real Prometheus with the committed configuration scrapes the server and answers every query of the dashboard."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.omni_server import CHAT, KEY, SPEECH, OmniServer

from .conftest import TINY_OMNI

DEPLOY = Path(__file__).parents[3] / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "omni.json").read_text())
PROMETHEUS = shutil.which("prometheus")
# This server makes no images and keeps no videos, nothing of it is lost, and its machine may count no energy.
WITHOUT_TRAFFIC = {"Queue of video jobs", "Restarts of stages", "Size of kept videos", "Power per device"}

pytestmark = [pytest.mark.nightly, pytest.mark.skipif(PROMETHEUS is None, reason="needs the program `prometheus`")]


class Prometheus:
    """Scrapes a server until it is closed."""

    def __init__(self, folder: Path, server: OmniServer) -> None:
        (folder / "key").write_text(KEY)
        text = (DEPLOY / "prometheus.yml").read_text()
        for was, now in (
            ("omni:8000", f"{server.ready['host']}:{server.ready['port']}"),
            ("/run/secrets/omni_api_key", str(folder / "key")),
        ):
            assert was in text
            text = text.replace(was, now)
        (folder / "prometheus.yml").write_text(text)
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        self.url = f"http://{address}"
        self._process = subprocess.Popen(
            [
                str(PROMETHEUS),
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={address}",
            ],
            stderr=(folder / "log").open("w"),
        )

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an expression; an HTTP error if it does not parse."""
        parameters = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"{self.url}/api/v1/query?{parameters}", timeout=30) as response:
            return json.load(response)["data"]["result"]

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)


def as_grafana_sends(expression: str) -> str:
    return expression.replace("$instance", ".*").replace("$__rate_interval", "1m")


@pytest.fixture
def keyed(start_server: Any) -> OmniServer:
    return start_server(*TINY_OMNI, environment={"OMNI_API_KEY": KEY})


@pytest.fixture
def prometheus(keyed: OmniServer, tmp_path: Path) -> Iterator[Prometheus]:
    started = Prometheus(tmp_path, keyed)
    yield started
    started.close()


def send_requests(server: OmniServer) -> None:
    """A chat with speech, streamed, speech of a text, and a refused request."""
    key = {"authorization": f"Bearer {KEY}"}
    chat = {"messages": [{"role": "user", "content": "hello"}], "modalities": ["text", "audio"], "stream": True}
    chat["audio"] = {"voice": "alloy", "format": "pcm16"}
    speech = {"model": "tiny-omni", "input": "hello", "voice": "alloy"}
    assert server.request("POST", CHAT, chat, **key).status == 200
    assert server.request("POST", SPEECH, speech, **key).status == 200
    assert server.request("POST", CHAT, {"messages": []}, **key).status == 400


def test_every_panel_has_data(keyed: OmniServer, prometheus: Prometheus) -> None:
    answers: dict[str, list[dict[str, Any]]] = {}
    labels = {panel["title"]: panel["targets"][0]["legendFormat"] for panel in DASHBOARD["panels"]}
    wanted = labels.keys() - WITHOUT_TRAFFIC

    def has_all() -> bool:
        """Rates need two scrapes with requests between."""
        send_requests(keyed)
        time.sleep(1)
        for panel in DASHBOARD["panels"]:
            found = [prometheus.query(as_grafana_sends(target["expr"])) for target in panel["targets"]]
            answers[panel["title"]] = [sample for samples in found for sample in samples]
        return all(
            any(float(sample["value"][1]) >= 0 for sample in answers[title]) and answers[title] for title in wanted
        )

    keyed.wait_until(lambda: up(prometheus))
    keyed.wait_until(has_all)
    for title in wanted:
        for label in [name.strip("{}") for name in labels[title].split() if name.startswith("{{")]:
            assert all(sample["metric"].get(label) for sample in answers[title]), (title, label)
    assert {sample["metric"]["stage"] for sample in answers["Latency per stage"]} == {"thinker", "talker", "token2wav"}


def up(prometheus: Prometheus) -> bool:
    """Return True once a scrape was accepted."""
    try:
        return [sample["value"][1] for sample in prometheus.query("up")] == ["1"]
    except OSError:
        return False
