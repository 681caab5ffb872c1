"""token2wav's requests in flight. Each call advances some of them by a denoising step, or makes waveforms; between two
calls requests join and leave."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from omni_cli.backends.execution.ranges import clock_for, mark
from omni_cli.backends.execution.worker_pool import WorkerPool
from omni_cli.models.qwen2_5_omni.token2wav.denoising import Denoising
from omni_cli.models.qwen2_5_omni.token2wav.platform import VOCODER_CONTEXT_FRAMES
from omni_cli.models.qwen2_5_omni.token2wav.request import ChunkState, SynthesisRequest
from omni_cli.models.qwen2_5_omni.token2wav.synthesizer import Synthesizer

# The order of a request, by id: the smallest is first, and its first number is the priority; equal ones stay in order
# of arrival.
GetOrder = Callable[[str], tuple[float, ...]]


@dataclass
class Batch:
    """Requests that joined together, all at the same step. Workers have tasks for those in `running`, by id."""

    requests: list[SynthesisRequest]
    denoising: Denoising
    num_done: int = 0
    running: set[str] = field(default_factory=set)

    @property
    def num_steps(self) -> int:
        return self.requests[0].sampling.num_steps - 1

    @property
    def is_denoised(self) -> bool:
        return self.num_done == self.num_steps


@dataclass
class SpeechTask:
    """A denoising step of a batch, or the waveforms of its requests in `vocoding`, from their spectrograms `mels`.

    A worker adds the waveforms by request id, and when the task started and ended.
    """

    batch: Batch
    vocoding: Sequence[SynthesisRequest] = ()
    mels: Mapping[str, torch.Tensor] = field(default_factory=dict)
    waveforms: dict[str, torch.Tensor] = field(default_factory=dict)
    times: tuple[object, object] = (None, None)

    @property
    def requests(self) -> Sequence[SynthesisRequest]:
        """The requests of the task that have not left."""
        return [request for request in self.batch.requests if not self.vocoding or request in self.vocoding]


class SpeechScheduler:
    """The requests of one synthesizer, in batches; waiting ones form the next batch.

    Only the first batches in order advance, one per worker. A worker that has ended its task gets the next one without
    waiting for others: a waveform takes as long as several steps. On a GPU with `batching: padded` there is one worker,
    whose batch has all requests that can start.
    """

    def __init__(self, synthesizer: Synthesizer) -> None:
        self.get_order: GetOrder = lambda request_id: ()
        # Of the latest call: the ids of requests that were advanced, their steps so far, and their steps in all.
        self.finished_steps: list[tuple[str, int, int]] = []
        self._synthesizer = synthesizer
        self._runs_together = synthesizer.platform.runs_together
        self._workers: WorkerPool[SpeechTask] = WorkerPool(synthesizer.platform.num_workers)
        self._clock = clock_for(torch.device(synthesizer.device).type)
        self._waiting: dict[str, SynthesisRequest] = {}
        self._batches: list[Batch] = []
        # The state of the latest chunk, by stream.
        self._chunk_states: dict[str, ChunkState] = {}
        # Start and end of each denoising step of a request, and of its vocoder.
        self._times: dict[str, list[tuple[object, object]]] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._times

    def add(self, request: SynthesisRequest) -> None:
        # Noise is drawn while the device computes other requests.
        noise = self._synthesizer.noise(request)
        self._waiting[request.request_id] = dataclasses.replace(request, drawn_noise=noise)
        self._times[request.request_id] = []

    def drop(self, request_id: str) -> None:
        """Forget a request, finished or not, if it is here."""
        self._times.pop(request_id, None)
        self._waiting.pop(request_id, None)
        for batch in self._batches:
            if request_id in [request.request_id for request in batch.requests]:
                if batch.running and len(batch.requests) > 1:
                    self._workers.wait_for_all()
                self._remove(batch, {request_id})
                return

    def end_stream(self, stream: str) -> None:
        """Forget the state of a stream's latest chunk, if there is one."""
        self._chunk_states.pop(stream, None)

    def seconds(self, request_id: str) -> list[float]:
        """Return the seconds of each step of a finished request, and of its vocoder."""
        return [self._clock.seconds(start, end) for start, end in self._times[request_id]]

    def advance(self) -> dict[str, torch.Tensor]:
        """Do the next work; return the waveforms (num_samples,) float32 that it finished, by request id.

        Workers whose tasks have not ended go on meanwhile, and into the next call.
        """
        self.finished_steps = []
        waveforms: dict[str, torch.Tensor] = {}
        with self._synthesizer.arithmetic():
            tasks = self._assign_tasks()
            for task in tasks:
                task.batch.running |= {request.request_id for request in task.requests}
            self._workers.start([functools.partial(self._run, task) for task in tasks])
            for task in self._workers.finished():
                waveforms |= self._record(task)
        return waveforms

    def _assign_tasks(self) -> list[SpeechTask]:
        """Assign one task to each idle worker: highest priority first, vocoder tasks before denoising steps."""
        num_idle = self._workers.num_idle
        tasks = [
            SpeechTask(batch, requests, batch.denoising.mels())
            for batch in self._batches
            if batch.is_denoised
            for requests in self._split_for_vocoder(batch)
        ]
        tasks.sort(key=lambda task: self._get_first_order(task.vocoding))
        if len(tasks) < num_idle:
            self._start_waiting()
            denoising = [batch for batch in self._batches if not batch.is_denoised]
            num_workers = num_idle - len(tasks) + sum(bool(batch.running) for batch in denoising)
            tasks += [SpeechTask(batch) for batch in self._sort_for(num_workers, denoising) if not batch.running]
        return tasks[:num_idle]

    def _split_for_vocoder(self, batch: Batch) -> list[list[SynthesisRequest]]:
        """Return the requests of a denoised batch that no worker has, together or each by itself."""
        if self._runs_together:
            return [batch.requests]
        return [[request] for request in batch.requests if request.request_id not in batch.running]

    def _sort_for(self, num_workers: int, batches: list[Batch]) -> list[Batch]:
        """Sort batches by order; if there are one to two per worker, let the last ones alternate.

        Without that, all but the last batches would end first, and leave workers idle. So the batches without a worker
        alternate with as many others of their priority, and all of these end together.
        """
        ordered = sorted(batches, key=lambda batch: self._get_first_order(batch.requests))
        if not num_workers < len(ordered) < 2 * num_workers:
            return ordered
        num_kept = 2 * num_workers - len(ordered)
        alternating = sorted(
            ordered[num_kept:], key=lambda batch: (self._get_first_order(batch.requests)[:1], batch.num_done)
        )
        return [*ordered[:num_kept], *alternating]

    def _get_first_order(self, requests: Sequence[SynthesisRequest]) -> tuple[float, ...]:
        return min(self.get_order(request.request_id) for request in requests)

    def _start_waiting(self) -> None:
        """Start waiting requests, unless a running one is before them; a chunk waits for the one before it.

        Where requests run together, all of the highest priority start, and only a higher priority interrupts others: a
        batch that began beside another one would not end sooner than after it, and the other would end later.
        """
        num_workers = self._workers.num_workers
        waiting = self._get_ready()
        if self._runs_together and self._restart_first_steps(waiting):
            waiting = self._get_ready()
        # The numbers of an order that are compared: all, or the priority only.
        compared = slice(1 if self._runs_together else None)
        batches = list(self._synthesizer.batches(waiting))
        are_last = len(self._batches) + len(batches) < 2 * num_workers
        for requests in batches:
            running = sorted(self._get_first_order(batch.requests) for batch in self._batches)
            has_worker = len(running) < num_workers or are_last
            order = self.get_order(requests[0].request_id)
            if not has_worker and order[compared] >= running[num_workers - 1][compared]:
                return
            for request in requests:
                del self._waiting[request.request_id]
            started = [dataclasses.replace(request, previous=self._get_chunk_state(request)) for request in requests]
            self._batches.append(Batch(started, self._synthesizer.begin(started)))

    def _get_ready(self) -> list[SynthesisRequest]:
        """Return the waiting requests that can start, in order; where requests run together, of one priority."""
        ready = [request for request in self._waiting.values() if self._is_ready(request)]
        ready.sort(key=lambda request: self.get_order(request.request_id))
        if not self._runs_together:
            return ready
        priorities = [self.get_order(request.request_id)[:1] for request in ready]
        return [request for request, priority in zip(ready, priorities, strict=True) if priority == priorities[0]]

    def _restart_first_steps(self, arriving: list[SynthesisRequest]) -> bool:
        """Move first-step requests back to the queue if enough requests of the same priority arrive.

        Return True if any were moved. Requests that are sent together arrive one by one. Those that are moved lose
        their first step, and share all others.
        """
        moved = [
            batch
            for batch in self._batches
            if batch.num_done == 1
            and len(batch.requests) <= sum(request.sampling == batch.requests[0].sampling for request in arriving)
            and self._get_first_order(batch.requests)[:1] == self._get_first_order(arriving)[:1]
        ]
        for batch in moved:
            self._batches.remove(batch)
            self._waiting = {request.request_id: request for request in batch.requests} | self._waiting
            self._times |= {request.request_id: [] for request in batch.requests}
        return bool(moved)

    def _is_ready(self, request: SynthesisRequest) -> bool:
        if request.stream is None or request.codes_start == 0:
            return True
        state = self._get_chunk_state(request)
        return state is not None and state.end == request.codes_start

    def _get_chunk_state(self, request: SynthesisRequest) -> ChunkState | None:
        return None if request.stream is None else self._chunk_states.get(request.stream)

    def _run(self, task: SpeechTask) -> SpeechTask:
        """Run a task in its worker."""
        start = self._clock.mark()
        with self._synthesizer.arithmetic():
            if task.vocoding:
                with mark("vocoder"):
                    task.waveforms = dict(self._synthesizer.waveforms(task.vocoding, task.mels))
            else:
                with mark("denoising step", task.batch.num_done + 1):
                    task.batch.denoising.step()
        task.times = start, self._clock.mark()
        return task

    def _record(self, task: SpeechTask) -> dict[str, torch.Tensor]:
        """Record that a task is done; return its waveforms without those of requests that left meanwhile."""
        batch, requests = task.batch, task.requests
        batch.running -= {request.request_id for request in task.vocoding} or batch.running
        for request in requests:
            self._times[request.request_id].append(task.times)
        if not requests:
            return {}
        if task.vocoding:
            waveforms = {request.request_id: task.waveforms[request.request_id] for request in requests}
            self._remove(batch, set(waveforms))
            return waveforms
        batch.num_done += 1
        if batch.is_denoised:
            self._chunk_states |= batch.denoising.chunk_states(VOCODER_CONTEXT_FRAMES)
        self.finished_steps += [(request.request_id, batch.num_done, batch.num_steps) for request in requests]
        return {}

    def _remove(self, batch: Batch, request_ids: set[str]) -> None:
        batch.requests = [request for request in batch.requests if request.request_id not in request_ids]
        if batch.requests:
            batch.denoising.drop(request_ids)
        else:
            self._batches.remove(batch)
