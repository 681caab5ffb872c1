"""Requests of token2wav in flight. Each call advances some by one denoising step, or makes a waveform; between two
calls requests join and leave."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from omni_cli.execution.lanes import Lanes
from omni_cli.execution.ranges import mark
from omni_cli.execution.timeline import clock_for
from omni_cli.models.qwen2_5_omni.token2wav.denoising import Denoising
from omni_cli.models.qwen2_5_omni.token2wav.request import ChunkState, SynthesisRequest
from omni_cli.models.qwen2_5_omni.token2wav.synthesizer import Synthesizer
from omni_cli.models.qwen2_5_omni.token2wav.vocoder import VOCODER_CONTEXT_FRAMES

# Order of requests by id, the smallest first, ranks before all else; equal ones in order of arrival.
Precedence = Callable[[str], tuple[float, ...]]


@dataclass(frozen=True)
class Stepped:
    """A request that was advanced to step `done` of `total`."""

    request_id: str
    done: int
    total: int


@dataclass
class Cohort:
    """Requests that joined together, all at the same step. A lane works on those that `running` names."""

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


@dataclass(frozen=True)
class SpeechPiece:
    """A step of a cohort, or the waveforms of the `sounding` requests in it, from their spectrograms."""

    cohort: Cohort
    sounding: Sequence[SynthesisRequest] = ()
    mels: Mapping[str, torch.Tensor] = field(default_factory=dict)

    @property
    def requests(self) -> Sequence[SynthesisRequest]:
        """Those of its requests that have not left."""
        return [each for each in self.cohort.requests if not self.sounding or each in self.sounding]


@dataclass(frozen=True)
class Done:
    """A piece with its waveforms by request id, and when it started and ended."""

    piece: SpeechPiece
    made: Mapping[str, torch.Tensor]
    times: tuple[object, object]


class SpeechBatch:
    """The requests of one synthesizer, in cohorts; waiting ones form the next cohort.

    Only the first cohorts in precedence advance, one per lane. A lane that ends goes on with the next work without
    waiting for others: a waveform takes as long as several steps. On a GPU and with `batching: padded` there is one
    lane, whose cohort has all requests that can start.
    """

    def __init__(self, synthesizer: Synthesizer) -> None:
        self.precedence: Precedence = lambda request_id: ()
        self.stepped: list[Stepped] = []
        self._synthesizer = synthesizer
        self._lanes: Lanes[Done] = Lanes(synthesizer.platform.num_workers)
        self._clock = clock_for(torch.device(synthesizer.device).type)
        self._waiting: dict[str, SynthesisRequest] = {}
        self._cohorts: list[Cohort] = []
        # By stream.
        self._carried: dict[str, ChunkState] = {}
        # Start and end of each denoising step of a request, and of its vocoder.
        self._times: dict[str, list[tuple[object, object]]] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._times

    def add(self, request: SynthesisRequest) -> None:
        # Noise is drawn while the device computes other requests.
        self._waiting[request.request_id] = dataclasses.replace(request, drawn_noise=self._synthesizer.noise(request))
        self._times[request.request_id] = []

    def drop(self, request_id: str) -> None:
        """Forget a request, finished or not, if it is here."""
        self._times.pop(request_id, None)
        self._waiting.pop(request_id, None)
        for cohort in self._cohorts:
            if request_id in [each.request_id for each in cohort.requests]:
                if cohort.running and len(cohort.requests) > 1:
                    self._lanes.settle()
                self._leave(cohort, {request_id})
                return

    def end_stream(self, stream: str) -> None:
        """Forget what chunks of a stream have carried on, if anything."""
        self._carried.pop(stream, None)

    def seconds(self, request_id: str) -> list[float]:
        """Return the seconds of each step of a finished request, and of its vocoder."""
        return [self._clock.seconds(start, end) for start, end in self._times[request_id]]

    def advance(self) -> dict[str, torch.Tensor]:
        """Do the next work; return waveforms (num_samples,) float32 that it finished, by request id.

        Lanes that have more to do go on meanwhile, and into the next call.
        """
        self.stepped = []
        finished: dict[str, torch.Tensor] = {}
        with self._synthesizer.arithmetic():
            pieces = self._next()
            for piece in pieces:
                piece.cohort.running |= {each.request_id for each in piece.requests}
            self._lanes.start([functools.partial(self._do, piece) for piece in pieces])
            for done in self._lanes.ended():
                finished |= self._note(done)
        return finished

    def _next(self) -> list[SpeechPiece]:
        """Return a piece for each free lane, in order of precedence, waveforms before steps."""
        free = self._lanes.num_free
        pieces = [
            SpeechPiece(cohort, sounding, cohort.denoising.mels())
            for cohort in self._cohorts
            if cohort.is_denoised
            for sounding in self._sounding(cohort)
        ]
        pieces.sort(key=lambda piece: self._first_of(piece.sounding))
        if len(pieces) < free:
            self._join()
            stepping = sorted((each for each in self._cohorts if not each.is_denoised), key=self._of_cohort)
            lanes = free - len(pieces) + sum(bool(each.running) for each in stepping)
            pieces += [SpeechPiece(cohort) for cohort in self._balanced(stepping, lanes) if not cohort.running]
        return pieces[:free]

    def _sounding(self, cohort: Cohort) -> list[list[SynthesisRequest]]:
        """Return the requests of a denoised cohort whose waveforms are next, together or each by itself."""
        if self._synthesizer.platform.runs_together:
            return [cohort.requests]
        return [[each] for each in cohort.requests if each.request_id not in cohort.running]

    def _balanced(self, cohorts: list[Cohort], lanes: int) -> list[Cohort]:
        """Reorder cohorts in order of precedence for so many lanes, if less than one per lane would have to wait.

        Lanes would be idle at the end then. So as many as have no lane alternate with as many others of their rank, and
        all end together.
        """
        if not lanes < len(cohorts) < 2 * lanes:
            return cohorts
        first = 2 * lanes - len(cohorts)
        return [*cohorts[:first], *sorted(cohorts[first:], key=lambda each: (self._of_cohort(each)[:1], each.num_done))]

    def _of_cohort(self, cohort: Cohort) -> tuple[float, ...]:
        return self._first_of(cohort.requests)

    def _first_of(self, requests: Sequence[SynthesisRequest]) -> tuple[float, ...]:
        return min(self.precedence(each.request_id) for each in requests)

    def _join(self) -> None:
        """Start waiting requests, unless one that runs comes first; a chunk waits for the one before it.

        Where requests run together, those of the highest rank start, and only a higher rank interrupts others: a cohort
        that began beside another one would not end sooner than after it, and the others would end later.
        """
        count, compared = self._lanes.count, None
        waiting = self._ready()
        if self._synthesizer.platform.runs_together:
            compared = 1
            waiting = self._of_highest_rank(waiting)
            if self._begin_again(waiting):
                waiting = self._of_highest_rank(self._ready())
        groups = list(self._synthesizer.batches(waiting))
        are_last = len(self._cohorts) + len(groups) < 2 * count
        for group in groups:
            running = sorted(self._of_cohort(cohort) for cohort in self._cohorts)
            has_lane = len(running) < count or are_last
            if not has_lane and self.precedence(group[0].request_id)[:compared] >= running[count - 1][:compared]:
                return
            for each in group:
                del self._waiting[each.request_id]
            requests = [self._continuing(each) for each in group]
            self._cohorts.append(Cohort(requests, self._synthesizer.begin(requests)))

    def _ready(self) -> list[SynthesisRequest]:
        """Return the waiting requests that can start, in order of precedence."""
        ready = [each for each in self._waiting.values() if self._is_ready(each)]
        return sorted(ready, key=lambda each: self.precedence(each.request_id))

    def _of_highest_rank(self, ordered: list[SynthesisRequest]) -> list[SynthesisRequest]:
        ranks = [self.precedence(each.request_id)[:1] for each in ordered]
        return [each for each, rank in zip(ordered, ranks, strict=True) if rank == ranks[0]]

    def _begin_again(self, coming: list[SynthesisRequest]) -> bool:
        """Let requests after their first step wait again if at least as many of their rank come; tell whether any do.

        Requests that are sent together arrive one by one. Their first step is lost, and all others are shared.
        """
        alike = [
            cohort
            for cohort in self._cohorts
            if cohort.num_done == 1
            and len(cohort.requests) <= sum(each.sampling == cohort.requests[0].sampling for each in coming)
            and self._of_cohort(cohort)[:1] == self._first_of(coming)[:1]
        ]
        for cohort in alike:
            self._cohorts.remove(cohort)
            self._waiting = {each.request_id: each for each in cohort.requests} | self._waiting
            self._times |= {each.request_id: [] for each in cohort.requests}
        return bool(alike)

    def _is_ready(self, request: SynthesisRequest) -> bool:
        if request.stream is None or request.codes_start == 0:
            return True
        carried = self._carried.get(request.stream)
        return carried is not None and carried.end == request.codes_start

    def _continuing(self, request: SynthesisRequest) -> SynthesisRequest:
        carried = self._carried.get(request.stream) if request.stream is not None else None
        return dataclasses.replace(request, previous=carried)

    def _do(self, piece: SpeechPiece) -> Done:
        """Do a piece in its lane."""
        cohort, made = piece.cohort, {}
        start = self._clock.mark()
        with self._synthesizer.arithmetic():
            if piece.sounding:
                with mark("vocoder"):
                    made = dict(self._synthesizer.waveforms(piece.sounding, piece.mels))
            else:
                with mark("denoising step", cohort.num_done + 1):
                    cohort.denoising.step()
        return Done(piece, made, (start, self._clock.mark()))

    def _note(self, done: Done) -> dict[str, torch.Tensor]:
        """Note that a piece is done; return its waveforms without those of requests that left meanwhile."""
        piece, cohort, requests = done.piece, done.piece.cohort, done.piece.requests
        cohort.running -= {each.request_id for each in piece.sounding} or cohort.running
        for each in requests:
            self._times[each.request_id].append(done.times)
        if not requests:
            return {}
        if piece.sounding:
            made = {each.request_id: done.made[each.request_id] for each in requests}
            self._leave(cohort, set(made))
            return made
        cohort.num_done += 1
        if cohort.is_denoised:
            self._carried |= cohort.denoising.chunk_states(VOCODER_CONTEXT_FRAMES)
        self.stepped += [Stepped(each.request_id, cohort.num_done, cohort.num_steps) for each in requests]
        return {}

    def _leave(self, cohort: Cohort, request_ids: set[str]) -> None:
        cohort.requests = [each for each in cohort.requests if each.request_id not in request_ids]
        if cohort.requests:
            cohort.denoising.drop(request_ids)
        else:
            self._cohorts.remove(cohort)
