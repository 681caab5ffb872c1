"""OpenAI's batch files, as `--requests`: the routes of `omni serve` answer each line, without a port."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from msgspec.structs import replace
from starlette.types import ASGIApp, Message

from omni_cli.cli.artifacts import ArtifactWriter
from omni_cli.cli.generate.options import GenerateOptions
from omni_cli.cli.generate.printers import BlockPrinter, Printer
from omni_cli.cli.generate.run import MAX_REQUESTS_IN_FLIGHT, BaseRun, BatchLine, RunOutcome
from omni_cli.cli.serve import make_engine
from omni_cli.cli.terminal import console
from omni_cli.cli.terminal.progress import ProgressDisplay
from omni_cli.config.schema import EngineConfig
from omni_cli.core.errors import InputError, OmniError, UsageError
from omni_cli.openai_api.routes import Route
from omni_cli.report.generate_results import RequestRecord
from omni_cli.requests.jsonl import check_batch_line, claim_id, parse_object, read_lines
from omni_cli.requests.request_spec import BadRequest
from omni_cli.serve.exchange import AccessLog, Exchange, new_id
from omni_cli.serve.limits import Limits, ServerSettings
from omni_cli.serve.middleware import replay
from omni_cli.serve.server import Server
from omni_cli.serve.supervisor import Supervisor

_URLS = (Route.CHAT, Route.COMPLETIONS, Route.RESPONSES, Route.IMAGES)


def read_batch(path: Path) -> Iterator[BatchLine | BadRequest]:
    """Yield the lines of a batch file; one that is wrong is a `BadRequest`."""
    taken: dict[str, str] = {}
    for number, line in read_lines(path):
        place, custom_id = f"{path}:{number}", f"line {number}"
        try:
            fields = parse_object(line)
            custom_id = str(fields.get("custom_id", custom_id))
            claim_id(fields, custom_id, place, taken, "custom_id")
            url, body = check_batch_line(fields, _URLS)
            yield BatchLine(custom_id, place, url, json.dumps(body).encode())
        except UsageError as error:
            yield BadRequest(custom_id, error, place)


@dataclass(kw_only=True)
class BatchFileRun(BaseRun):
    """Starts the engine below a server's routes, `app`, and sends all lines."""

    worker: Supervisor
    requests: Sequence[BatchLine | BadRequest]
    app: ASGIApp

    async def _work(self) -> None:
        await self.worker.start(self.progress.handle)
        self._ready_at, in_flight = time.monotonic(), asyncio.Semaphore(MAX_REQUESTS_IN_FLIGHT)
        self.printer.on_loaded(self.worker.stages)
        lines = [(index, line) for index, line in enumerate(self.requests) if isinstance(line, BatchLine)]
        await asyncio.gather(*(self._run_line(index, line, in_flight) for index, line in lines))

    async def _run_line(self, index: int, line: BatchLine, in_flight: asyncio.Semaphore) -> None:
        content: list[bytes] = []

        async def send(message: Message) -> None:
            content.append(message.get("body", b""))

        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": line.url, "query_string": b"", "headers": headers}
        async with in_flight:
            await self.app(scope, replay(line.body), send)
        exchange, body = Exchange.from_scope(scope), json.loads(b"".join(content))
        response = {"status_code": exchange.status, "request_id": exchange.request_id, "body": body}
        answer: dict[str, object] = {"response": response, "error": None}
        failure: OmniError | None = None
        if "error" in body and exchange.status != 200:
            failure = (InputError if (exchange.status or 500) < 500 else OmniError)(body["error"]["message"])
            answer["error"] = {name: body["error"][name] for name in ("code", "message")}
        notes = tuple(exchange.changes)
        self._end(index, RequestRecord(line.request_id, error=failure, place=line.place, earlier=answer, notes=notes))


def run_batch(
    path: Path, config: EngineConfig, progress: ProgressDisplay, began_s: float, options: GenerateOptions
) -> RunOutcome:
    """Answer a batch file in the batch's own form. Raises `OmniError` if no line could run."""
    output_dir, verbose = options.output_dir, options.verbose
    log, limits = AccessLog(None if verbose else StringIO()), Limits(timeout_s=math.inf)
    lines = list(read_batch(path))
    engine = make_engine(config, options.replicas, limits, log, verbose=verbose)
    settings = ServerSettings(limits, output_dir, drain_timeout_s=0, served_model_names=("*",), seed=config.seed)
    server = Server(engine, config, settings, log)
    printer = Printer(progress, verbose=verbose)
    if not options.as_json:
        printer = BlockPrinter(progress, verbose=verbose, quiet=options.quiet)
    run = BatchFileRun(
        worker=server.supervisor, requests=lines, app=server.app,
        writer=ArtifactWriter(output_dir, ()), printer=printer, progress=progress,
    )  # fmt: skip
    outcome = asyncio.run(run.run(timeout_s=options.timeout, waited_s=time.monotonic() - began_s))
    records = []
    for record in outcome.records:
        answer = record.earlier or {"response": None, "error": {"code": "not_run", "message": str(record.error)}}
        line = {"id": new_id("batch_req"), "custom_id": record.request_id, **answer}
        records.append(replace(record, earlier=line))
        if not options.as_json:
            console.print_text(json.dumps(line))
    return replace(outcome, records=tuple(records))
