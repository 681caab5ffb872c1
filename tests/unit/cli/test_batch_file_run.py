"""A batch file's run counts the time of its requests and reports the stages, as those of other requests do."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from omni_cli.cli.artifacts import ArtifactWriter
from omni_cli.cli.generate.batch import BatchFileRun
from omni_cli.cli.generate.printers import Printer
from omni_cli.cli.generate.run import BatchLine
from omni_cli.cli.terminal.progress import choose_progress
from omni_cli.requests.outputs import StageInfo
from omni_cli.serve.exchange import Exchange


class Worker:
    """An engine that is ready at once."""

    stages = (StageInfo("model", "ar", 1.0, {}),)

    async def start(self, _on_event: Any) -> None:
        pass

    async def close(self) -> None:
        pass


class Shown(Printer):
    loaded: Any = ()

    def on_loaded(self, stages: Any) -> None:
        self.loaded = stages


async def answer(scope: Any, _receive: Any, send: Any) -> None:
    Exchange.begin(scope, timeout_s=60, route=scope["path"])
    await asyncio.sleep(0.02)
    await send({"type": "http.response.body", "body": b"{}"})


def test_its_requests_take_time_and_its_stages_are_reported(tmp_path: Path) -> None:
    progress = choose_progress([("model", "ar")], 0, sys.stderr, quiet=True, verbose=False)
    lines = [BatchLine("a", "batch.jsonl:1", "/v1/completions", b"{}")]
    worker: Any = Worker()
    printer = Shown(progress, verbose=False)
    shown: Any = {"writer": ArtifactWriter(tmp_path, ()), "printer": printer, "progress": progress}
    run = BatchFileRun(worker=worker, requests=lines, app=answer, **shown)
    outcome = asyncio.run(run.run(timeout_s=None))
    assert [record.error for record in outcome.records] == [None]
    assert outcome.total_s >= 0.02
    assert outcome.stages == printer.loaded == Worker.stages
