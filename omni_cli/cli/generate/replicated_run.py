"""One run of `omni generate --replicas`: the unfinished requests of a file, on engines that Ray places."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace

from omni_cli.cli.artifacts import ArtifactWriter
from omni_cli.cli.generate.printers import Printer
from omni_cli.cli.generate.run import BaseRun
from omni_cli.cli.terminal import console
from omni_cli.cli.terminal.progress import ProgressDisplay
from omni_cli.engine.replicas.batch_job import BatchAnswer, BatchJob
from omni_cli.report.finished import FinishedRequests
from omni_cli.report.records import RequestRecord
from omni_cli.report.units import count
from omni_cli.requests.outputs import RequestResult, StageLoading
from omni_cli.requests.request_spec import BadRequest, RequestSpec


class ReplicatedRun(BaseRun[BatchJob, RequestSpec | BadRequest]):
    """Records every finished request immediately; requests that an earlier run recorded are not run again."""

    def __init__(
        self,
        job: BatchJob,
        specs: Sequence[RequestSpec | BadRequest],
        finished: FinishedRequests,
        *,
        writer: ArtifactWriter,
        printer: Printer,
        progress: ProgressDisplay,
    ) -> None:
        super().__init__(job, specs, writer=writer, printer=printer, progress=progress)
        self._finished = finished

    async def _work(self) -> None:
        if not self._end_bad_requests():
            return
        specs = {index: spec for index, spec in enumerate(self._requests) if isinstance(spec, RequestSpec)}
        keys = {index: self._finished.key(spec) for index, spec in specs.items()}
        earlier = self._finished.read()
        open_specs: dict[int, RequestSpec] = {}
        for index, spec in specs.items():
            result = earlier.get(keys[index])
            if result is None:
                open_specs[index] = spec
            else:
                self._end(index, RequestRecord(spec.request_id, place=spec.place, earlier=result))
                self._progress.handle(RequestResult(spec.request_id, (), ()))
        if len(open_specs) < len(specs):
            done = count(len(specs) - len(open_specs), "request")
            self._print_note(f"{done} of {len(specs)} done before: {self._finished.path}")
        if not open_specs:
            return
        for stage in self._worker.config.stages:
            self._progress.handle(StageLoading(stage.name, stage.kind))
        async with aclosing(self._worker.answers(open_specs)) as answers:
            async for index, answer in answers:
                self._take(index, open_specs[index], answer)
                if self._records[index].error is None:
                    self._finished.add(keys[index], self._records[index])

    def _take(self, index: int, spec: RequestSpec, answer: BatchAnswer) -> None:
        if answer.load_error is not None and not self._started:
            raise answer.load_error  # all requests would fail with it, and none has finished
        if answer.stages and not self._started:
            for stage in answer.stages:
                self._progress.handle(StageLoading(stage.name, stage.kind, stage))
            self._started = True
        for output in answer.result.outputs:
            self._show(index, spec.request_id, output, spec.request.modalities)
        self._progress.handle(answer.result)
        result, outputs = answer.result, tuple(self._written[index])
        record = RequestRecord(spec.request_id, outputs, result.stages, result.error, spec.place, answer.total_s)
        self._end(index, replace(record, notes=result.notes))

    def _print_note(self, message: str) -> None:
        self._progress.hide()
        console.print_note(message)
        self._progress.show()
