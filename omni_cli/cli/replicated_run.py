"""One run of `omni generate --replicas`: what is not yet done of a file, on engines that Ray places."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

from omni_cli.cli import console
from omni_cli.cli.artifacts import ArtifactWriter
from omni_cli.cli.base_run import BaseRun
from omni_cli.cli.printers import Printer
from omni_cli.cli.progress import Progress
from omni_cli.inputs.request_spec import BadRequest, RequestSpec
from omni_cli.outputs import RequestResult, StageLoading
from omni_cli.replicas.batch_job import BatchJob
from omni_cli.replicas.batch_replica import BatchAnswer
from omni_cli.report.finished import FinishedRequests
from omni_cli.report.records import RequestRecord
from omni_cli.report.units import count


class ReplicatedRun(BaseRun):
    """Writes every finished request down at once; those that an earlier run has written down are not run again."""

    def __init__(
        self,
        job: BatchJob,
        specs: Sequence[RequestSpec | BadRequest],
        finished: FinishedRequests,
        *,
        writer: ArtifactWriter,
        printer: Printer,
        progress: Progress,
    ) -> None:
        super().__init__(job, specs, writer=writer, printer=printer, progress=progress)
        self._job = job
        self._specs = specs
        self._finished = finished

    async def _work(self) -> None:
        if not self._end_bad_requests():
            return
        keys = {
            index: self._finished.key(spec) for index, spec in enumerate(self._specs) if isinstance(spec, RequestSpec)
        }
        earlier = self._finished.read()
        open_specs: dict[int, RequestSpec] = {}
        for index, spec in enumerate(self._specs):
            if not isinstance(spec, RequestSpec):
                continue
            if keys[index] in earlier:
                self._end(index, RequestRecord(spec.request_id, place=spec.place, earlier=earlier[keys[index]]))
                self._progress.handle(RequestResult(spec.request_id, (), ()))
            else:
                open_specs[index] = spec
        if len(open_specs) < len(keys):
            done = count(len(keys) - len(open_specs), "request")
            self._tell(f"{done} of {len(keys)} done before: {self._finished.path}")
        if not open_specs:
            return
        for stage in self._job.config.stages:
            self._progress.handle(StageLoading(stage.name, stage.kind))
        async with aclosing(self._job.answers(open_specs)) as answers:
            async for index, answer in answers:
                self._take(index, open_specs[index], answer)
                if self._records[index].error is None:
                    self._finished.add(keys[index], self._records[index])

    def _take(self, index: int, spec: RequestSpec, answer: BatchAnswer) -> None:
        if answer.load_error is not None and not self._started:
            raise answer.load_error  # it is everybody's, and nothing has come of anything yet
        if answer.stages and not self._started:
            for stage in answer.stages:
                self._progress.handle(StageLoading(stage.name, stage.kind, stage))
            self._started = True
        for warning in answer.warnings:
            self._printer.warn(warning if spec.place is None else f"{spec.place}: {warning}")
        for output in answer.result.outputs:
            self._show(index, spec.request_id, output, spec.modalities)
        self._progress.handle(answer.result)
        error, outputs = answer.result.error, tuple(self._written[index])
        self._end(
            index,
            RequestRecord(spec.request_id, outputs, answer.result.stages, error, spec.place, total_s=answer.total_s),
        )

    def _tell(self, message: str) -> None:
        self._progress.hide()
        console.print_note(message)
        self._progress.show()
